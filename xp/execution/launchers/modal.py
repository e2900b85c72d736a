"""`launcher=modal`: each stage is a function of a generated app; the outputs root is a volume.

All requests use Modal's own command. The call is spawned, so that it outlives the client, and its result is a file on
the volume: a call that a client waits for would be cancelled with the client.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers import modal_app
from xp.execution.launchers.base import Context, Echo, Launch, StageContext
from xp.execution.launchers.cluster import (
    SUBMITTED,
    TimedOut,
    ask,
    identity,
    inherited,
    run_unattended,
)
from xp.execution.launchers.files import inside
from xp.execution.launchers.node.job_spec import JOB_SPEC, RESULT, Result
from xp.execution.launchers.service import (
    ServiceLauncher,
    limit_of,
)
from xp.lib.atomic import replacing
from xp.lib.packages import install_command
from xp.planning.job import Stage
from xp.planning.refusals import check_limits, needs_one_node
from xp.spec.launcher import LauncherSpec

ANSWER_S = 120.0
SUBMIT_S = 3600.0
"""Seconds that a submission may take; the first one builds the image."""


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.execution.launchers.base.LauncherModule."""
    del spec
    return needs_one_node(stage, "launcher=modal gives a stage one container") or (
        modal_app.accelerator_limit(stage.job.resources) or limit_of(stage, "modal")
    )


def untried(stage: Stage) -> str | None:
    """See xp.planning.refusals.launcher_lines."""
    return modal_app.untried_number(stage.job.resources)


class ModalLauncher(ServiceLauncher):
    """One app per stage; one app for all stages of a detached run."""

    name = "modal"
    file_name = modal_app.APP_FILE
    brings_metrics = True

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks Modal's client, and whether Modal supports the stages' needs, without network requests."""
        if _program() is None:
            raise XpError(
                f"launcher=modal needs Modal's client: {install_command('modal')}, then modal setup",
                ExitCode.RUNTIME,
            )
        check_limits(self._spec, stages)
        for stage in stages:
            modal_app.check_secrets(StageContext(stage, context), self._spec)

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follows Modal's log of the app until the result is on the volume, then copies the small results here."""
        code = self._follow(launch, [*_modal(), "app", "logs", launch.native_id, "--follow"], echo)
        missing = self._bring(launch, leave=("log.txt",))  # written locally from Modal's own log
        if missing:
            echo(f"xp: Modal did not give {', '.join(missing)}; `runs fetch` asks again\n")
        return code

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the app is running, or if Modal does not answer."""
        result = f"{Path(launch.log).parent}/{RESULT}"
        code = _code(self._read(result))
        if code is not None:
            return code
        apps = _apps("app_id", launch.native_id)
        if not apps or "stopped" not in apps[0].get("state", ""):
            return None
        text = self._read(result)
        if text is None:  # read again: it may be as old as the app's end
            if self._is_absent(result):
                return 128 + 15
            return None
        code = _code(text)
        if code is None:
            return ExitCode.RUNTIME
        return code

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Stops the app; Modal has only one way to stop, so `now` has no effect."""
        run_unattended([*_modal(), "app", "stop", "--yes", launch.native_id])

    def fetch(self, launch: Launch) -> None:
        """See xp.execution.launchers.base.Detachable; raises XpError(RUNTIME) with the names of files that Modal did not give."""
        missing = self._bring(launch)
        if missing:
            raise XpError(
                f"Modal did not give {', '.join(missing)}; ask again later", ExitCode.RUNTIME
            )

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Copies directories from the volume, replacing earlier copies; returns those that exist.

        Args:
            names: paths relative to the outputs root, here and on the volume.

        Raises:
            XpError: RUNTIME if Modal's client fails.
        """
        brought = []
        for name in names:
            target = inside(self._outputs, name)
            if (self._entries(str(Path(name).parent)) or {}).get(name) != "dir":
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            # Atomic, and needed because Modal's --force empties its target directory.
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as fresh:
                ask(
                    [*_modal(), "volume", "get", str(self._spec.volume), name, fresh],
                    timeout_s=SUBMIT_S,
                )
                if target.is_dir() and not target.is_symlink():
                    target.rename(Path(fresh, "before"))
                Path(fresh, target.name).rename(target)
            brought.append(name)
        return brought

    def _bring(self, launch: Launch, leave: Sequence[str] = ()) -> list[str]:
        """Copies a stage's directory on the volume, and the run's metrics, to this machine.

        Returns names of existing files that Modal did not give.
        """
        directory = Path(launch.log).parent
        run = Path(*directory.parts[:2])
        files = [
            name for name, kind in (self._entries(str(directory)) or {}).items() if kind == "file"
        ]
        missing = []
        for name in (*files, f"{run}/metrics.jsonl"):
            target = inside(self._outputs, name)  # names on the volume are not trusted
            if target.name in (JOB_SPEC, modal_app.APP_FILE, SUBMITTED, *leave):
                continue
            content = self._read(name)
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as temporary:
                    temporary.write_bytes(content)
            elif not self._is_absent(name):
                missing.append(name)
        return missing

    def _text(self, stages: Sequence[StageContext]) -> str:
        stage, context = stages[0]
        title = f"{', '.join(stage.name for stage, _ in stages)} of {context.run_id}, attempt {context.attempt}"
        return modal_app.app_text(title, self._name(stage, context), stages, self._spec)

    def _name(self, stage: Stage, context: Context) -> str:
        return f"{self._spec.app}-{identity(stage, context)}"

    def _hand_in(self, file: Path, name: str, stages: Sequence[StageContext]) -> str:
        plain, _ = inherited(stages[0][1])
        tokens = {name: value for name, value in os.environ.items() if name.startswith("MODAL_")}
        try:
            answer = ask(
                [*_modal(), "run", "--detach", "--quiet", str(file)],
                timeout_s=SUBMIT_S,
                environ=plain | tokens,
            )
        except TimedOut as error:
            answer = str(error)
        match = re.search(r"^xp-submitted (ap-\S+) ", answer, re.MULTILINE)
        if match is None:
            native_id = self._find(name)
        else:
            native_id = match.group(1)
        if native_id is None:
            raise XpError(f"modal run printed no app: {answer.strip()[-300:]!r}", ExitCode.RUNTIME)
        return native_id

    def _find(self, name: str) -> str | None:
        """Id of a running or recent app of this name. None means that there is none."""
        ids = [app.get("app_id") for app in _apps("description", name)]
        return next(iter(ids), None)

    def _entries(self, directory: str) -> dict[str, str] | None:
        """Name -> kind; None if the directory does not exist, or Modal does not answer."""
        items = _listing("volume", "ls", str(self._spec.volume), directory)
        if items is None:
            return None
        return {item.get("filename", ""): item.get("type", "") for item in items}

    def _is_absent(self, name: str) -> bool:
        """Returns whether Modal says that a file does not exist; False also if it does not answer."""
        entries = self._entries(str(Path(name).parent))
        if entries is not None:
            return name not in entries
        return (
            self._entries("/") is not None
        )  # it answers, so it is the directory that does not exist

    def _read(self, name: str) -> bytes | None:
        """Content of a file on the volume; None if it does not exist, or Modal does not answer."""
        argv = [*_modal(), "volume", "get", str(self._spec.volume), name, "-"]
        try:
            run = subprocess.run(
                argv, capture_output=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout if run.returncode == 0 else None


make_launcher = ModalLauncher
"""See xp.execution.launchers.base.LauncherModule."""


def _code(text: bytes | None) -> int | None:
    """The exit code in a stage's result; None if there is none."""
    with suppress(ValueError, KeyError, TypeError):
        return Result.from_json((text or b"").decode()).exit_code
    return None


def _listing(group: str, action: str, *words: str) -> list[dict[str, str]] | None:
    """Rows of a listing of Modal's, with keys in small letters. None means that Modal does not answer."""
    with suppress(XpError, ValueError, AttributeError, TypeError):
        items = json.loads(ask([*_modal(), group, action, "--json", *words], timeout_s=ANSWER_S))
        return [
            {key.lower().replace(" ", "_"): str(value) for key, value in item.items()}
            for item in items
        ]
    return None


def _apps(key: str, value: str) -> list[dict[str, str]]:
    """Rows of the apps with this value; none if Modal does not answer."""
    return [app for app in _listing("app", "list") or () if app.get(key) == value]


def _program() -> str | None:
    return shutil.which("modal") or shutil.which("modal", path=str(Path(sys.executable).parent))


def _modal() -> list[str]:
    return [_program() or "modal"]
