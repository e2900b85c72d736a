"""`launcher=local`: each stage is a process of this machine, run by a guard process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Echo, Launch, timestamp
from xp.execution.launchers.cluster import inherited
from xp.execution.launchers.files import write_files
from xp.execution.launchers.node.gpus import Gpus, claim
from xp.execution.launchers.node.log import LogStream, drain, is_screen
from xp.execution.launchers.node.program import exit_code
from xp.execution.launchers.preflight import check_machine, python_variables, with_interpreter
from xp.lib import processes
from xp.planning.job import Stage
from xp.planning.refusals import needs_one_node
from xp.spec.launcher import LauncherSpec

TREE_LOCK = ".tree.lock"
TREE_DEADLINE_S = 30.0
"""Seconds beyond the grace period that an earlier attempt's process tree may take to end."""


def make_launcher(spec: LauncherSpec, outputs: Path) -> LocalLauncher:
    """See xp.execution.launchers.base.LauncherModule."""
    del outputs
    return LocalLauncher(spec.grace_s)


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.execution.launchers.base.LauncherModule."""
    return needs_one_node(stage, f"launcher={spec.name} runs on this machine only")


@dataclass(frozen=True)
class _RunningJob:
    process: subprocess.Popen[bytes]
    file: BinaryIO
    context: Context
    launch: Launch


class LocalLauncher:
    """One process tree per stage; only its guard sends signals to it."""

    name = "local"
    is_here = True

    def __init__(self, grace_s: float = 10.0, *, on_screen: bool | None = None) -> None:
        self._grace_s = grace_s
        self._on_screen = is_screen() if on_screen is None else on_screen
        self._running: dict[str, _RunningJob] = {}
        self._gpus = Gpus()

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks packages and interpreters; reserves accelerators for the launcher's lifetime."""
        check_machine(stages)
        self._gpus.release()
        self._gpus = claim([stage.job.resources for stage in stages])

    def submit(self, stage: Stage, context: Context) -> Launch:
        key = context.key(stage.name)
        if key in self._running:
            return self._running[key].launch
        log = context.outputs / context.log(stage.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = log.open("xb")
        except FileExistsError:
            raise XpError(f"{log} exists: {key} was started before", ExitCode.RUN_DIR) from None
        write_files(stage.job.files, context.outputs)
        argv = with_interpreter(stage.job.argv, stage.job.runtime)
        hold = self._hold_tree(context)
        process = processes.start(
            argv,
            self._grace_s,
            cwd=context.outputs,
            env=self._environment(stage, context),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(hold,),
        )
        os.close(hold)
        launch = Launch(self.name, key, str(process.pid), context.log(stage.name), timestamp())
        self._running[key] = _RunningJob(process, file, context, launch)
        return launch

    def wait(self, launch: Launch, echo: Echo) -> int:
        running = self._running[launch.key]
        stream = LogStream(running.file, running.context.redactor, echo, on_screen=self._on_screen)
        try:
            drain(running.process, stream)
            stream.close()
        except OSError as error:
            self.cancel(launch)
            running.process.wait()
            log = running.context.outputs / launch.log
            raise XpError(
                f"{log}: {error.strerror}; the stage was stopped", ExitCode.RESOURCE
            ) from error
        finally:
            with suppress(OSError):
                running.file.close()
        return exit_code(running.process)

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        processes.ask(self._running[launch.key].process, now=now)

    def close(self, context: Context) -> None:
        """Does nothing: no process outlives a stage, and accelerators are kept for the next attempt."""

    def _hold_tree(self, context: Context) -> int:
        """Takes the process tree's lock; after a killed supervisor it stays locked until its job has ended."""
        file = (context.outputs / context.directory).parent / TREE_LOCK
        hold = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        end = time.monotonic() + self._grace_s + TREE_DEADLINE_S
        while True:
            try:
                fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return hold
            except BlockingIOError:
                if time.monotonic() >= end:
                    os.close(hold)
                    reason = "processes of an earlier attempt are still running"
                    raise XpError(f"{context.run_id}: {reason}", ExitCode.RUN_DIR) from None
                time.sleep(0.1)

    def _environment(self, stage: Stage, context: Context) -> dict[str, str]:
        job = stage.job
        plain, hidden = inherited(context, job.runtime.project or "")
        gpus = self._gpus.names[: job.resources.num_accelerators]
        return {
            **plain,
            **hidden,
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            **(_screen() if self._on_screen else {}),
            **python_variables(
                job.runtime, context.outputs / context.code, plain.get("PYTHONPATH", "")
            ),
            **job.env,
            **context.variables(stage.name),
            "XP_PYTHON": sys.executable,  # xp.envs.local_server
            **context.secrets,
        }


def _screen() -> Mapping[str, str]:
    """Variables that make libraries draw progress bars as on a terminal, although the job's output is a pipe."""
    size = os.terminal_size((80, 24))
    if sys.stdout.isatty():
        size = os.get_terminal_size(sys.stdout.fileno())
    flags = dict.fromkeys(("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"), "1")
    return {"COLUMNS": str(size.columns), "LINES": str(size.lines), **flags}
