"""Plans of small scripts, and a supervisor of its own process to send signals to."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil

from tests.support.child import Fork
from xp.contrib.contracts.jobs import CPU as CPU
from xp.contrib.contracts.jobs import DEADLINE_S as DEADLINE_S
from xp.contrib.contracts.jobs import eventually as eventually
from xp.contrib.contracts.jobs import stage as stage
from xp.errors import XpError
from xp.execution.launchers.local import LocalLauncher
from xp.execution.record import RunRecord, read_record
from xp.execution.supervise import dispatch
from xp.planning.job import Runtime, Stage
from xp.spec import LauncherSpec

ROOT = Path(__file__).resolve().parents[2]

STUBBORN_TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
def start(**options):
    process = subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE, **options)
    process.stdout.readline()
    return process.pid
pids = [os.getpid(), start(), start(start_new_session=True)]
reader, writer = os.pipe()
if os.fork() == 0:  # a daemon: its parent ends at once, and it has a session of its own
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(writer, str(pid).encode())
        os._exit(0)
    time.sleep(600)
    os._exit(0)
pids.append(int(os.read(reader, 20)))
os.wait()
with open("pids.part", "w") as file:
    file.write(" ".join(map(str, pids)))
os.rename("pids.part", "pids")
print("ready", flush=True)
time.sleep(600)
"""
"""Ignores TERM, and so do a child, a child in a session of its own, and a daemon."""


@dataclass(frozen=True)
class Limits:
    max_restarts: int = 0
    detach: bool = False


@dataclass(frozen=True)
class Trainer:
    name: str = "trl"
    pins: Mapping[str, str] = field(default_factory=lambda: {"pytest": "9", "no-such-package": "1"})
    commits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class NoEnvironments:
    members: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeSpec:
    launcher: Any = Limits()
    backend: Trainer = Trainer()
    tracking: tuple[str, ...] = ()
    project: str = "tests"
    env: NoEnvironments = NoEnvironments()

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        whole = {
            "tracking": list(self.tracking),
            "project": self.project,
            "backend": asdict(self.backend),
        }
        section = self.launcher
        return whole | {
            "launcher": asdict(section)
            if isinstance(section, Limits)
            else section.model_dump(mode="json")
        }


@dataclass(frozen=True)
class FakePlan:
    run_id: str
    stages: tuple[Stage, ...]
    attempt: int = 1
    spec: FakeSpec = FakeSpec()
    command: tuple[str, ...] = ()

    def to_json(self) -> str:
        stages = [asdict(stage) for stage in self.stages]
        return json.dumps(
            {"run_id": self.run_id, "spec": self.spec.model_dump(mode="json"), "stages": stages}
        )

    def at(self, attempt: int) -> FakePlan:
        return replace(self, attempt=attempt)

    def by(self, launcher: LauncherSpec) -> FakePlan:
        """The same, with a real launcher's section."""
        return replace(self, spec=replace(self.spec, launcher=launcher))


def plan(
    *stages: Stage, run_id: str = "run", max_restarts: int = 0, tracking: tuple[str, ...] = ()
) -> FakePlan:
    return FakePlan(run_id, stages, spec=FakeSpec(launcher=Limits(max_restarts), tracking=tracking))


def run(
    one: FakePlan, outputs: Path, screen: list[str] | None = None, grace_s: float = 2.0
) -> RunRecord:
    """Dispatch here, without waiting between restarts."""
    texts = [] if screen is None else screen
    launcher = LocalLauncher(grace_s, on_screen=False)
    return dispatch(one, launcher, outputs, echo=texts.append, replan=one.at, restart_delay_s=0.0)  # type: ignore[arg-type]


def launcher_spec(name: str, **changes: Any) -> LauncherSpec:
    """A launcher's section as conf/launcher has it, changed."""
    from xp.composition import compose  # half of a supervisor's start-up, which needs none

    overrides = [
        f"launcher={name}",
        *(f"launcher.{key}={_written(value)}" for key, value in changes.items()),
    ]
    return compose(overrides, ()).launcher


def _written(value: Any) -> str:
    """The value as on the command line."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{text}" for name, text in value.items()) + "}"
    return json.dumps(value)


def statuses(outputs: Path, run_id: str = "run") -> dict[str, str]:
    """Statuses of the last attempt's stages, as they are on disk."""
    return {
        item.name: str(item.status)
        for item in read_record(outputs / "runs" / run_id).attempts[-1].stages
    }


class Supervisor(Fork):
    """`dispatch` in a process of its own."""

    def __init__(
        self,
        outputs: Path,
        codes: Sequence[str],
        *,
        grace_s: float = 2.0,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        self.outputs = outputs
        self._codes = codes
        self._grace_s = grace_s
        self._first = first
        super().__init__(self._supervise, ROOT)

    def _supervise(self) -> int:
        self._first()
        os.dup2(1, 2)
        sys.stderr = sys.stdout
        stages = [stage(f"s{number}", code) for number, code in enumerate(self._codes)]
        try:
            dispatch(plan(*stages), LocalLauncher(self._grace_s), self.outputs)  # type: ignore[arg-type]
        except XpError as error:
            print(f"xp: {error}")
            return error.code
        return 0

    def tree(self) -> list[int]:
        """Wait for STUBBORN_TREE to stand; returns its processes."""
        eventually(lambda: (self.outputs / "pids").exists())
        return [int(text) for text in (self.outputs / "pids").read_text().split()]


def forms(secret: str) -> set[str]:
    """Forms that a secret with the word XPCANARY in it may take in a log, a file or an argument."""
    whole = {secret, *secret.splitlines()}
    encoded = {
        base64.b64encode(secret.encode()).decode()[:24],
        quote(secret),
        json.dumps(secret)[1:-1],
    }
    return whole | encoded | {"XPCANARY"}


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


__all__ = [
    "CPU",
    "ROOT",
    "STUBBORN_TREE",
    "FakePlan",
    "Runtime",
    "Supervisor",
    "eventually",
    "forms",
    "is_alive",
    "launcher_spec",
    "plan",
    "run",
    "stage",
    "statuses",
]
