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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.job import Stage
from xp.launchers import modal_app
from xp.launchers.base import Context, Echo, Launch, now
from xp.launchers.cluster import SUBMITTED, TimedOut, ask, identity, inherited, read_launches, write_launches
from xp.launchers.files import inside, write_files
from xp.launchers.log_command import follow_until_over
from xp.launchers.modal_image import lock_of
from xp.launchers.node.job_spec import JOB_SPEC, RESULT, make_job_spec
from xp.lib.atomic import replacing, write_atomically
from xp.secrets.redaction import Redactor
from xp.spec.place import LauncherSpec

ANSWER_S = 120.0
SUBMIT_S = 3600.0
"""Seconds that a submission may take; the first one builds the image."""
ASK_S = 10.0


def make_launcher(spec: LauncherSpec, outputs: Path) -> ModalLauncher:
    """See xp.launchers.base.LauncherModule."""
    return ModalLauncher(spec, outputs)


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.launchers.base.LauncherModule."""
    try:
        modal_app.check_job(stage.name, stage.job, spec)
    except XpError as error:
        # A secret's name there is no part of the plan: the launch asks for it.
        return str(error) if error.code is ExitCode.PLAN else None
    return None


class ModalLauncher:
    """One app per stage; one app for all stages of a detached run."""

    name = "modal"
    is_here = False
    tells = ("wandb",)
    brings_metrics = True

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        self._spec = spec
        self._outputs = outputs.absolute()
        self._redactor = Redactor()

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks Modal's client, and whether Modal supports the stages' needs, without network requests."""
        if _program() is None:
            raise XpError(
                f"launcher=modal needs Modal's client: {sys.executable} -m pip install modal==1.6.4, then modal setup",
                ExitCode.RUNTIME,
            )
        for stage in stages:
            modal_app.check_job(stage.name, stage.job, self._spec)
        modal_app.check_trackers(context.tracking, self._spec)

    def submit(self, stage: Stage, context: Context) -> Launch:
        return self._submit([(stage, context)], context.outputs / context.directory / stage.name)[0]

    def submit_all(self, stages: Sequence[tuple[Stage, Context]]) -> list[Launch]:
        """Submits one app with a chain of functions."""
        if not stages:
            return []
        context = stages[0][1]
        return self._submit(stages, context.outputs / context.directory)

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follows Modal's log of the app until the result is on the volume, then copies the small results here."""
        command = [*_modal(), "app", "logs", launch.native_id, "--follow"]
        log = self._outputs / launch.log
        code = follow_until_over(command, log, self._redactor, echo, lambda: self.poll(launch), ASK_S)
        missing = self._bring(launch, leave=("log.txt",))  # written locally from Modal's own log
        if missing:
            echo(f"xp: Modal did not give {', '.join(missing)}; `runs fetch` asks again\n")
        return code

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the app is running, or if Modal does not answer."""
        result = f"{Path(launch.log).parent}/{RESULT}"
        if (code := _code(self._read(result))) is not None:
            return code
        state = self._state(launch.native_id)
        if state is None or "stopped" not in state:
            return None
        if (text := self._read(result)) is None:  # read again: it may be as old as the app's end
            return 128 + 15 if self._is_absent(result) else None
        return ExitCode.RUNTIME if (code := _code(text)) is None else code

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Stops the app; Modal has only one way to stop, so `now` has no effect."""
        del now
        subprocess.Popen(
            [*_modal(), "app", "stop", "--yes", launch.native_id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def close(self, context: Context) -> None:
        """Does nothing: the secrets' values are in the user's own Modal Secret."""

    def fetch(self, launch: Launch) -> None:
        """See xp.launchers.base.Detachable; raises XpError(RUNTIME) with the names of files that Modal did not give."""
        if missing := self._bring(launch):
            raise XpError(f"Modal did not give {', '.join(missing)}; ask again later", ExitCode.RUNTIME)

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Copies directories from the volume, replacing earlier copies; returns those that exist.

        Args:
            names: paths relative to the outputs root, here and on the volume.

        Raises:
            XpError: RUNTIME if Modal's client fails.
        """
        brought = []
        for name in names:
            place = inside(self._outputs, name)
            if name not in self._names(str(Path(name).parent), kinds=("dir",)):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            # Atomic, and needed because Modal's --force empties its target directory.
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fetch-") as fresh:
                ask([*_modal(), "volume", "get", str(self._spec.volume), name, fresh], timeout_s=SUBMIT_S)
                if place.is_dir() and not place.is_symlink():
                    place.rename(Path(fresh, "before"))
                Path(fresh, place.name).rename(place)
            brought.append(name)
        return brought

    def _bring(self, launch: Launch, leave: Sequence[str] = ()) -> list[str]:
        """Copies a stage's directory on the volume, and the run's metrics, to this machine.

        Returns names of existing files that Modal did not give.
        """
        directory = Path(launch.log).parent
        run = Path(*directory.parts[:2])
        missing = []
        for name in (*self._names(str(directory)), f"{run}/metrics.jsonl"):
            place = inside(self._outputs, name)  # names on the volume are not trusted
            if place.name in (JOB_SPEC, modal_app.APP_FILE, SUBMITTED, *leave):
                continue
            if (content := self._read(name)) is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                with replacing(place) as temporary:
                    temporary.write_bytes(content)
            elif not self._is_absent(name):
                missing.append(name)
        return missing

    def preview(self, stages: Sequence[tuple[Stage, Context]]) -> Mapping[str, str]:
        """Text of each app; of one app for all stages of a detached run."""
        if self._spec.detach:
            return {f"{stages[0][1].directory}/{modal_app.APP_FILE}": self._app(stages)}
        return {f"{its.directory}/{one.name}/{modal_app.APP_FILE}": self._app([(one, its)]) for one, its in stages}

    def _app(self, stages: Sequence[tuple[Stage, Context]]) -> str:
        stage, context = stages[0]
        parts = [modal_app.part_of(*pair) for pair in stages]
        title = f"{', '.join(part.stage for part in parts)} of {context.run_id}, attempt {context.attempt}"
        return modal_app.app_text(title, self._name(stage, context), parts, self._spec)

    def _name(self, stage: Stage, context: Context) -> str:
        return f"{self._spec.app}-{identity(stage, context)}"

    def _submit(self, stages: Sequence[tuple[Stage, Context]], directory: Path) -> list[Launch]:
        stage, context = stages[0]
        self._redactor = context.redactor
        if (known := read_launches(directory)) is not None:
            return known
        name = self._name(stage, context)
        file = directory / modal_app.APP_FILE
        if not file.exists() or (native_id := self._find(name)) is None:
            for one, its in stages:
                self._place(one, its)
            write_atomically(file, self._app(stages))
            native_id = self._hand_in(file, name, context)
        started = now()
        launches = [Launch(self.name, its.key(one.name), native_id, its.log(one.name), started) for one, its in stages]
        write_launches(directory, launches)
        return launches

    def _place(self, stage: Stage, context: Context) -> None:
        """Writes the files that the app adds to the image: the job spec, and the lock's files."""
        write_files(stage.job.files, context.outputs)  # so that the run's directory is complete on this machine too
        job_spec = make_job_spec(
            stage,
            context,
            root=modal_app.MOUNT,
            grace_s=self._spec.grace_s,
            secrets_file=None,
            prints=True,
            brings_files=True,
        )
        path = context.outputs / job_spec.directory / JOB_SPEC
        write_atomically(path, job_spec.to_json())
        if (lock := lock_of(stage.job)) is not None:
            for file in lock.files:
                write_atomically(path.parent / modal_app.LOCKS / file.name, file.read_text(encoding="utf-8"))

    def _hand_in(self, file: Path, name: str, context: Context) -> str:
        plain, _ = inherited(context)
        tokens = {name: value for name, value in os.environ.items() if name.startswith("MODAL_")}
        try:
            answer = ask(
                [*_modal(), "run", "--detach", "--quiet", str(file)], timeout_s=SUBMIT_S, environ=plain | tokens
            )
        except TimedOut:
            if (found := self._find(name)) is None:
                raise
            return found
        match = re.search(r"^xp-submitted (ap-\S+) ", answer, re.MULTILINE)
        if match is None and (found := self._find(name)) is not None:
            return found
        if match is None:
            raise XpError(f"modal run printed no app: {answer.strip()[-300:]!r}", ExitCode.RUNTIME)
        return match.group(1)

    def _find(self, name: str) -> str | None:
        """Id of a running or recent app of this name; None: there is none."""
        found = (app.get("app_id") for app in self._apps() if app.get("description") == name)
        return next(found, None)

    def _state(self, native_id: str) -> str | None:
        found = (app.get("state") for app in self._apps() if app.get("app_id") == native_id)
        return next(found, None)

    def _apps(self) -> list[dict[str, str]]:
        with suppress(XpError, ValueError, AttributeError):
            found = json.loads(ask([*_modal(), "app", "list", "--json"], timeout_s=ANSWER_S))
            return [{key.lower().replace(" ", "_"): str(value) for key, value in app.items()} for app in found]
        return []

    def _names(self, directory: str, kinds: Sequence[str] = ("file",)) -> list[str]:
        """Names in a directory of the volume, of these kinds; none if it does not exist, or Modal does not answer."""
        return [name for name, kind in (self._entries(directory) or {}).items() if kind in kinds]

    def _entries(self, directory: str) -> dict[str, str] | None:
        """Name -> kind; None if the directory does not exist, or Modal does not answer."""
        with suppress(XpError, ValueError, AttributeError, LookupError, TypeError):
            found = json.loads(
                ask([*_modal(), "volume", "ls", "--json", str(self._spec.volume), directory], timeout_s=ANSWER_S)
            )
            rows = [{key.lower(): str(value) for key, value in row.items()} for row in found]
            return {row["filename"]: row["type"] for row in rows}
        return None

    def _is_absent(self, name: str) -> bool:
        """Returns whether Modal says that a file does not exist; False also if it does not answer."""
        if (entries := self._entries(str(Path(name).parent))) is not None:
            return name not in entries
        return self._entries("/") is not None  # it answers, so it is the directory that does not exist

    def _read(self, name: str) -> bytes | None:
        """Content of a file on the volume; None if it does not exist, or Modal does not answer."""
        argv = [*_modal(), "volume", "get", str(self._spec.volume), name, "-"]
        try:
            run = subprocess.run(argv, capture_output=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout if run.returncode == 0 else None


def _code(text: bytes | None) -> int | None:
    """The exit code in a stage's result; None if there is none."""
    with suppress(ValueError, KeyError, TypeError):
        result: dict[str, Any] = json.loads(text or b"")
        return int(result["code"]) or (ExitCode.MISSING_OUTPUT if result["missing"] else ExitCode.OK)
    return None


def _program() -> str | None:
    return shutil.which("modal") or shutil.which("modal", path=str(Path(sys.executable).parent))


def _modal() -> list[str]:
    return [_program() or "modal"]
