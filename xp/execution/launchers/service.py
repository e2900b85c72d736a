"""Base of launchers that submit a file to a service's own command; the service's machines do not see this one."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Echo, Launch, StageContext
from xp.execution.launchers.cluster import (
    identity,
    read_launches,
    record_launches,
    spread_of,
)
from xp.execution.launchers.files import write_files
from xp.execution.launchers.node.job_spec import make_job_spec
from xp.execution.launchers.node.log import LogStream, drain
from xp.execution.launchers.node.spread import HERE
from xp.lib.atomic import write_atomically
from xp.lib.secrets.redaction import Redactor
from xp.planning.job import Job, Stage
from xp.planning.refusals import manages_own_gpus
from xp.planning.runtimes import RuntimeLock, lock_with, smallest_with
from xp.spec.launcher import LauncherSpec

LOCKS = "environment"
"""Directory beside the job spec with copies of the lock's files."""
MOUNT = "/outputs"
"""The outputs root on the service's machines."""
PYTHON = "3.12"
"""Version of the Python that gets a lock's packages."""
LOCKED = "--require-hashes --no-deps"
BY_ADDRESS = "--no-deps"
"""Options of pip for a lock's files: most have digests; a wheel by its address has none."""
QUIET_S = 15.0
"""Seconds that the last lines of a log may take after the stage's end."""


class ServiceLauncher:
    """One job of the service per stage; one job for all stages of a detached run."""

    name: str
    file_name: str
    """Name of the submitted file."""
    is_here = False
    tells = ("wandb",)
    ask_s = 10.0
    """Seconds between two requests while a job runs."""

    def __init__(self, spec: LauncherSpec, outputs: Path) -> None:
        self._spec = spec
        self._outputs = outputs.absolute()
        self._redactor = Redactor()

    def poll(self, launch: Launch) -> int | None:
        """See xp.execution.launchers.base.Detachable."""
        raise NotImplementedError

    def _text(self, stages: Sequence[StageContext]) -> str:
        """Text of the submitted file."""
        raise NotImplementedError

    def _name(self, stage: Stage, context: Context) -> str:
        """The job's name at the service."""
        return identity(stage, context)

    def _id(self, stages: Sequence[StageContext]) -> str:
        """The job's id, known before its submission."""
        return self._name(*stages[0])

    def _find(self, name: str) -> str | None:
        """Id of the job of this name. None means that there is none."""
        raise NotImplementedError

    def _hand_in(self, file: Path, name: str, stages: Sequence[StageContext]) -> str:
        """Submits the file; returns the job's id."""
        raise NotImplementedError

    def submit(self, stage: Stage, context: Context) -> Launch:
        submitted = StageContext(stage, context)
        return self._submit([submitted], submitted.directory)[0]

    def submit_all(self, stages: Sequence[StageContext]) -> list[Launch]:
        """Submits one job with a chain of stages."""
        if stages:
            return self._submit(stages, stages[0][1].outputs / stages[0][1].directory)
        return []

    def close(self, context: Context) -> None:
        """Does nothing: the service ends the machine with the job, and no value of a secret is here."""

    def preview(self, stages: Sequence[StageContext]) -> Mapping[str, str]:
        """Text of each submitted file; of one file for all stages of a detached run."""
        if self._spec.detach:
            return {f"{stages[0][1].directory}/{self.file_name}": self._text(stages)}
        return {
            f"{pair.context.directory}/{pair.stage.name}/{self.file_name}": self._text([pair])
            for pair in stages
        }

    def _submit(self, stages: Sequence[StageContext], directory: Path) -> list[Launch]:
        self._redactor = stages[0][1].redactor
        known = read_launches(directory)
        if known is not None:
            return known
        name = self._id(stages)
        file = directory / self.file_name
        native_id = self._find(name) if file.exists() else None
        if native_id is None:
            for stage, its in stages:
                self._place(stage, its)
            write_atomically(file, self._text(stages))
            native_id = self._hand_in(file, name, stages)
        return record_launches(directory, self.name, native_id, stages)

    def _place(self, stage: Stage, context: Context) -> None:
        """Writes the files that the machine gets: the job spec, and the lock's files."""
        files = stage.job.files
        grace_s = self._spec.grace_s
        # The run's directory is complete on this machine too.
        write_files(files, context.outputs)
        # Ray itself starts processes on the other nodes; any other program is started on each of them.
        spread = None if manages_own_gpus(stage.job) else spread_of(stage.job, HERE)
        job_spec = make_job_spec(
            stage, context, root=MOUNT, grace_s=grace_s, prints=True, files=files, spread=spread
        )
        path = job_spec.write(context.outputs)
        lock = lock_of(stage.job)
        if lock is not None:
            for file in lock.files:
                write_atomically(path.parent / LOCKS / file.name, file.read_text(encoding="utf-8"))

    def _follow(self, launch: Launch, command: Sequence[str], echo: Echo) -> int:
        """Copies a stage's log, which a command of the service prints, until the stage's end; returns its exit code."""
        log = self._outputs / launch.log
        log.parent.mkdir(parents=True, exist_ok=True)
        printing = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        with log.open("ab") as file:
            stream = LogStream(file, self._redactor, echo, on_screen=False)
            reader = threading.Thread(target=drain, args=(printing, stream), daemon=True)
            reader.start()
            try:
                while (code := self.poll(launch)) is None:
                    time.sleep(self.ask_s)
                reader.join(QUIET_S)
            finally:
                printing.terminate()
                printing.wait()
                reader.join(QUIET_S)
            stream.close()
        return code


def lock_of(job: Job) -> RuntimeLock | None:
    """Lock of the stage's Python; None if the spec names an image that has it.

    Raises:
        XpError: PLAN if no lock has the job's imports.
    """
    if job.runtime.image is not None:
        return None
    key = job.runtime.lock
    if key is None:
        lock = smallest_with(job.runtime.packages)
    else:
        lock = lock_with(key)
    if lock is None:
        packages = ", ".join(job.runtime.packages)
        fix = "name an image that does: backend.runtime.image=..."
        raise XpError(f"no lock of xp's holds {packages}; {fix}", ExitCode.PLAN)
    return lock


def limit_of(stage: Stage, launcher: str) -> str | None:
    """One sentence, with a remedy, for a stage whose Python the service's machines cannot have; else None."""
    runtime = stage.job.runtime
    is_in_image = runtime.image is not None and runtime.project in (None, *runtime.image_checkouts)
    if runtime.python is not None or (runtime.project is not None and not is_in_image):
        return (
            f"stage {stage.name}: backend.runtime.python and project_env name paths of this machine;"
            f" name an image for launcher={launcher} that holds the trainer, and where it has the checkout:"
            " backend.runtime.image=... backend.runtime.image_checkouts.NAME=/its/place"
        )
    try:
        lock_of(stage.job)
    except XpError as error:
        return str(error)
    return None
