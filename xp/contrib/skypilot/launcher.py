"""`launcher=skypilot`: each stage is a managed job of SkyPilot; the outputs root is a bucket or a volume.

All requests use SkyPilot's own command. SkyPilot finds a machine, restarts the job if the machine is preempted, and
stops the machine at the end.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from xp.contrib.skypilot.task import (
    TASK_FILE,
    SkypilotOptions,
    limit_of,
    needs_ray,
    task_text,
)
from xp.contrib.submitted_files import code_in, secret_values_of
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Echo, Launch, StageContext
from xp.execution.launchers.cluster import ask, identity, inherited, run_unattended
from xp.execution.launchers.service import (
    ServiceLauncher,
)
from xp.lib.atomic import write_atomically
from xp.lib.private_ray import TOKEN
from xp.lib.secrets.redaction import resolve
from xp.planning.job import Stage
from xp.planning.refusals import check_limits
from xp.spec.launcher import LauncherSpec

__all__ = ["Options", "SkypilotLauncher", "limit", "make_launcher"]

Options = SkypilotOptions
"""See xp.execution.launchers.base.LauncherModule."""

ANSWER_S = 120.0
SUBMIT_S = 1800.0
"""Seconds for an answer, and for a submission, which may start SkyPilot's controller first."""
LOG_CODES = (0, 100, 101, 103)
"""Exit codes with which `sky jobs logs` has printed a log: the job succeeded, failed, has not ended, was cancelled
(JobExitCode in sky/exceptions.py, SkyPilot 0.14.1)."""
OVER = frozenset({"SUCCEEDED", "CANCELLED", "FAILED"})
"""States of ended stages; states that begin with FAILED, like FAILED_SETUP, also count."""


def limit(spec: LauncherSpec, stage: Stage) -> str | None:
    """See xp.execution.launchers.base.LauncherModule."""
    del spec
    return limit_of(stage)


class SkypilotLauncher(ServiceLauncher):
    """One managed job per stage; one job with a chain of tasks for a detached run."""

    name = "skypilot"
    file_name = TASK_FILE
    brings_metrics = False

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Checks SkyPilot's client, and whether SkyPilot can run the stages, without network requests."""
        if _program() is None:
            raise XpError(
                f"launcher=skypilot needs SkyPilot's client: {sys.executable} -m pip install 'skypilot[aws]' (or gcp,"
                " kubernetes, ...), in a virtual environment of its own whose `sky` is on PATH; then sky check",
                ExitCode.RUNTIME,
            )
        check_limits(self._spec, stages)
        if context.tracking is not None:
            resolve(context.tracking.secrets)

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follows the job's log until SkyPilot reports its end."""
        return self._follow(
            launch, [*_sky(), "jobs", "logs", "--name", launch.native_id, "--follow"], echo
        )

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the job is queued, running or recovering, or if SkyPilot does not answer."""
        state = self._state(launch)
        if state is None or not (state in OVER or state.startswith("FAILED")):
            return None
        if state == "SUCCEEDED":
            return ExitCode.OK
        if state == "CANCELLED":
            return ExitCode.TERMINATED
        if state == "FAILED":
            code = code_in(self._log(launch), launch.key.rpartition("/")[2])
        else:
            code = None
        return code or ExitCode.RUNTIME

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Ends the job and its machine; the outputs are uploaded first unless `now`."""
        graceful = [] if now else ["--graceful"]
        run_unattended([*_sky(), "jobs", "cancel", "--yes", *graceful, "--name", launch.native_id])

    def fetch(self, launch: Launch) -> None:
        """Writes the current log; results stay in the bucket or volume."""
        text = self._log(launch)
        if text:
            log = self._outputs / launch.log
            log.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(log, self._redactor.redact(text))

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Raises XpError(RUNTIME) with the address of the results, which the store's own client can copy."""
        options = SkypilotOptions.model_validate(self._spec.options)
        if options.bucket:
            store = f"the bucket {options.bucket}"
        else:
            store = f"the volume {options.volume}"
        raise XpError(
            f"{', '.join(names)}: launcher=skypilot leaves results in {store}; bring them with its own client"
            " (aws s3 sync, gcloud storage rsync, or kubectl cp from a pod that mounts the volume)",
            ExitCode.RUNTIME,
        )

    def _text(self, stages: Sequence[StageContext]) -> str:
        return task_text(self._name(*stages[0]), stages, self._spec)

    def _name(self, stage: Stage, context: Context) -> str:
        return identity(stage, context).replace("_", "-").replace(".", "-")

    def _find(self, name: str) -> str | None:
        return name if self._rows(name) else None

    def _hand_in(self, file: Path, name: str, stages: Sequence[StageContext]) -> str:
        """Submits a job; `--secret NAME` takes values from the environment of `sky`, so commands and files have
        none."""
        values = secret_values_of(stages)
        if any(needs_ray(stage) for stage, _ in stages):
            values[TOKEN] = secrets.token_hex(32)
        words = [word for secret in sorted(values) for word in ("--secret", secret)]
        plain, _ = inherited(stages[0][1])
        sky = {
            key: value
            for key, value in os.environ.items()
            if key.startswith(("SKYPILOT_", "AWS_", "KUBE"))
        }
        ask(
            [*_sky(), "jobs", "launch", "--yes", "--detach-run", "--name", name, *words, str(file)],
            timeout_s=SUBMIT_S,
            environ=plain | sky | values,
        )
        return name

    def _state(self, launch: Launch) -> str | None:
        rows = self._rows(launch.native_id)
        stage = launch.key.rpartition("/")[2]
        stage_rows = [row for row in rows if row.get("task_name") == stage] or rows[:1]
        if stage_rows:
            return str(stage_rows[0].get("status"))
        return None

    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Rows of a job's tasks in SkyPilot's queue."""
        with suppress(XpError, ValueError, AttributeError, TypeError):
            queue = json.loads(
                ask(
                    [*_sky(), "jobs", "queue", "--refresh", "--all", "--output", "json"],
                    timeout_s=ANSWER_S,
                )
            )
            return [row for row in queue if row.get("job_name") == name]
        return []

    def _log(self, launch: Launch) -> str:
        with suppress(XpError):
            command = [*_sky(), "jobs", "logs", "--name", launch.native_id, "--no-follow"]
            return ask(command, timeout_s=ANSWER_S, codes=LOG_CODES)
        return ""


make_launcher = SkypilotLauncher
"""See xp.execution.launchers.base.LauncherModule."""


def _program() -> str | None:
    return shutil.which("sky")


def _sky() -> list[str]:
    return [_program() or "sky"]
