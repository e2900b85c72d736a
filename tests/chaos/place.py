"""A directory in which the embedded default, made small, is run as a user runs it, and what came of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.support.evaluations import evaluated

REWARDS = """
def by_length(outcome, messages):
    words = [len(message["content"] or "") for message in messages if message["role"] == "assistant"]
    return sum(outcome.step_rewards) + 0.1 * outcome.num_malformed + 0.001 * sum(words)
"""
"""Equal rewards teach nothing: this one tells the few episodes of a small run apart."""
SMALL = (
    "name=chaos",
    "seed=1",
    "env.reward_fn=my_rewards:by_length",
    "env.train.num_tasks=6",
    "env.held_out.num_tasks=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=4",
    "training.num_steps=3",
    "training.checkpoint_every=1",
    "evaluation.before_training=false",
    "env.limits.create_timeout_s=60",
    "env.limits.call_timeout_s=60",
    "env.limits.episode_timeout_s=3000",
)
CHANGES = ("time", "attempt", "run", "training/logprob_gap")
"""Beginnings of the names of metrics that may differ between two runs of one spec; the gap is rounding, which depends
on the episodes that were computed together."""
STAGES = ("prepare", "model", "train", "evaluate")
LIMIT_S = 3600.0
"""Time limit of one attempt, on a machine that has other work."""
POLL_S = 0.2


@dataclass
class Place:
    """One run's directory.

    Args:
        root: is made.
        spec: overrides of the run, SMALL first.
        environ: variables beside this process's.
        name: of the run, as the spec has it.
    """

    root: Path
    spec: Sequence[str] = SMALL
    environ: Mapping[str, str] = field(default_factory=dict)
    name: str = "chaos"
    num_hits: int = 0
    """Faults that came before the run's end."""
    next_attempt: int = 1
    """Number of the attempt that was started last."""
    began_s: dict[tuple[int, str], float] = field(default_factory=dict)
    """Attempt and stage -> processor time of the attempt when the stage was first seen."""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "my_rewards.py").write_text(REWARDS)

    def start(self, *words: str, **environ: str) -> psutil.Popen:
        """`python -m xp` with these words; its output is added to `screen.txt`."""
        with (self.root / "screen.txt").open("ab") as screen:
            return psutil.Popen(
                [sys.executable, "-m", "xp", *words],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env={**os.environ, **self.environ, **environ},
                start_new_session=True,
            )

    def begin(self, **environ: str) -> psutil.Popen:
        """The first attempt."""
        return self.start(*self.spec, **environ)

    def go_on(self, **environ: str) -> psutil.Popen:
        """The next attempt; the first one again where nothing is on record."""
        run = self.run()
        record = self.record()
        self.next_attempt = 1 + len((record or {}).get("attempts", []))
        if run is None or record is None:
            return self.begin(**environ)
        return self.start(f"resume={run.name}", **environ)

    def record(self) -> dict[str, Any] | None:
        """`run.json` of the newest run."""
        run = self.run()
        file = None if run is None else run / "run.json"
        return None if file is None or not file.is_file() else dict(json.loads(file.read_text()))

    def num_attempts(self) -> int:
        return len((self.record() or {}).get("attempts", []))

    def run(self) -> Path | None:
        """The newest run."""
        return max(
            (self.root / "outputs/runs").glob(f"{self.name}-*"),
            key=lambda path: path.name,
            default=None,
        )

    def stage_began(self, name: str, attempt: int = 1) -> bool:
        """Whether a stage has written its first line; the evaluation after training begins in the train stage."""
        run = self.run()
        first = "trajectories/after.jsonl" if name == "evaluate" else "log.txt"
        return run is not None and (run / f"attempt_{attempt}" / name / first).is_file()

    def work_s(self, process: psutil.Popen, stage: str) -> float | None:
        """Processor time since a stage of the attempt that was started last began; None where it has not."""
        used = cpu_s(process)
        key = (self.next_attempt, stage)
        if key not in self.began_s and not self.stage_began(stage, self.next_attempt):
            return None
        return used - self.began_s.setdefault(key, used)

    def processes(self) -> list[psutil.Process]:
        """Everything that runs in the directory, whoever its parent is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(self.root):
                    found.append(process)
        return found

    def quiet(self, limit_s: float = 600.0) -> bool:
        """Whether nothing runs here, at the latest when the time is over."""
        deadline = time.monotonic() + limit_s
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def stop(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def screen(self) -> str:
        file = self.root / "screen.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    def result(self) -> dict[str, Any]:
        """Results that no fault may change: weights, held-out results, the reward and loss of every step."""
        run = self.run()
        assert run is not None
        stage = max(run.glob("attempt_*/evaluate"), key=lambda place: int(place.parent.name[8:]))
        results = {name: (one["summary"], one["tasks"]) for name, one in evaluated(stage).items()}
        steps: dict[int, dict[str, Any]] = {}
        for line in (run / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            if values["stage"] == "train":
                steps[values["step"]] = {
                    name: value for name, value in values.items() if not name.startswith(CHANGES)
                }
        return {
            "weights": hashlib.sha256((run / "model/model.safetensors").read_bytes()).hexdigest(),
            "held out": results,
            "steps": steps,
        }


def ended(process: psutil.Popen, limit_s: float = LIMIT_S) -> int | None:
    """The exit code; None where it had to be killed after the limit."""
    try:
        return int(process.wait(limit_s))
    except psutil.TimeoutExpired:
        return None


def cpu_s(process: psutil.Popen) -> float:
    """Processor time that a process and those below it have used: a clock that other work does not change."""
    used = 0.0
    with suppress(psutil.Error):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times = one.cpu_times()
                used += times.user + times.system + times.children_user + times.children_system
    return used
