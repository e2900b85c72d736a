"""Runs without a supervisor: each command that reads a run's record updates it first. There is no daemon."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Detachable, Launch, RemoteLauncher, timestamp
from xp.execution.launchers.node.job_spec import CLAIM, read_result
from xp.execution.lock import complete_lock
from xp.execution.record import (
    LOCK,
    RunRecord,
    RunStatus,
    StageRecord,
    close_attempt,
    is_held,
    is_ours,
    read_record,
    update_stage,
    write_record,
)
from xp.execution.run_directory import resource_errors, xp_command
from xp.lib.reading import json_of
from xp.spec.launcher import LauncherSpec

if TYPE_CHECKING:
    from xp.planning.plan import Plan

LOCK_WAIT_S = 600.0
"""Seconds that another command may hold a run while it asks the cluster for its jobs."""
ENDED = (RunStatus.SUCCEEDED, RunStatus.CACHED, RunStatus.FAILED, RunStatus.INTERRUPTED)

STOPPED = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
"""Exit codes of a stage that was stopped by a signal."""


def current(run: Path) -> RunRecord:
    """Returns a run's current record; the jobs of a run without a supervisor are queried first.

    Raises:
        XpError: RUN_DIR if there is no such run; RESOURCE if its new state cannot be written.
    """
    from filelock import FileLock, Timeout

    record = read_record(run)
    if record.status is not RunStatus.RUNNING or is_held(run):
        return record
    launcher = detachable(run, record)
    if launcher is None:
        return record
    lock = FileLock(run / LOCK)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):  # another process holds the run, or this one may not write there
        return record
    try:
        record = read_record(run)
        updated = record
        if record.status is RunStatus.RUNNING:
            updated = _poll(record, launcher, run)
        with resource_errors(run):
            if updated != record:
                write_record(run, updated)
            if updated.status is not RunStatus.RUNNING:
                with suppress(XpError):  # `runs fetch` asks for the rest
                    fetch(run, updated)
                # Again: the stages' files, which complete the record, have only now arrived.
                write_record(run, updated)
                complete_lock(run)
                launcher.close(context_of(run, updated))
        return updated
    finally:
        lock.release()


def live(run: Path, record: RunRecord) -> list[Launch]:
    """Jobs of a run that have not ended on the cluster."""
    launcher = detachable(run, record)
    if launcher is None or record.status is not RunStatus.RUNNING:
        return []
    launches = [
        _launch(record, stage)
        for stage in record.attempts[-1].stages
        if stage.native_id is not None
    ]
    return [launch for launch in launches if launcher.poll(launch) is None]


def record_before(run: Path, plan: Plan) -> RunRecord:
    """Record before this attempt; raises XpError(RUN_DIR) if a cluster still has jobs of the last one."""
    if plan.attempt == 1:
        return RunRecord(plan.run_id, RunStatus.PENDING, ())
    record = read_record(run)
    jobs = [launch.native_id for launch in live(run, record)]
    if jobs:
        raise XpError(
            f"{plan.run_id}: job {', '.join(jobs)} of its last attempt is queued or runs;"
            f" wait for it, or end it: {xp_command(f'runs cancel {plan.run_id}', run.parent.parent)}",
            ExitCode.RUN_DIR,
        )
    return record


def fetch(run: Path, record: RunRecord) -> None:
    """Copies the logs and small results of the last attempt to this machine, if they are elsewhere."""
    launcher = detachable(run, record)
    if launcher is None or launcher.is_here:
        return
    for stage in record.attempts[-1].stages:
        if stage.native_id is not None:
            launcher.fetch(_launch(record, stage))


def fetch_results(run: Path, record: RunRecord, *, with_checkpoints: bool) -> list[str] | None:
    """Copies the model, the trajectories and optionally the checkpoints to this machine.

    Returns:
        The directories that were copied. None means that the run's files are here already, or its launcher may not be
            called.
    """
    launcher = detachable(run, record)
    if not isinstance(launcher, RemoteLauncher):
        return None
    fetch(run, record)
    stages = [
        (attempt.number, stage.name) for attempt in record.attempts for stage in attempt.stages
    ]
    names = ["model", *(["checkpoints"] if with_checkpoints else [])]
    names += [f"attempt_{number}/{stage}/trajectories" for number, stage in stages]
    return launcher.fetch_directories([f"runs/{record.run_id}/{name}" for name in names])


def stop(run: Path, record: RunRecord) -> list[str]:
    """Cancels a run's jobs on the cluster, the last ones first; returns their ids."""
    launcher = detachable(run, record)
    launches = live(run, record)
    if launcher is not None:
        for launch in reversed(launches):
            launcher.cancel(launch)
    return list(dict.fromkeys(launch.native_id for launch in launches))


def abandon(run: Path) -> None:
    """Closes the record of a run whose cluster no longer reports its jobs."""
    from filelock import FileLock

    with FileLock(run / LOCK, timeout=LOCK_WAIT_S):
        record = read_record(run)
        if record.status is RunStatus.RUNNING:
            write_record(run, close_attempt(record, RunStatus.INTERRUPTED))


def detachable(run: Path, record: RunRecord) -> Detachable | None:
    """The launcher of a run's last attempt, if its jobs need no supervisor; None if they were its processes."""
    from xp.execution.launchers.base import make_launcher

    # The record of another's run may name anything: no launcher is called, nothing is closed or fetched.
    if not is_ours(run):
        return None
    file = run / f"attempt_{len(record.attempts)}" / "plan.json"
    try:
        section = json_of(file, ExitCode.RUN_DIR)["spec"]["launcher"]
        spec = LauncherSpec.model_validate_json(json.dumps(section))
    except (XpError, KeyError, TypeError, ValueError, RecursionError):
        return None
    launcher = make_launcher(spec, run.parent.parent)
    if isinstance(launcher, Detachable):
        return launcher
    return None


def context_of(run: Path, record: RunRecord) -> Context:
    """Context of the last attempt, without secrets."""
    number = record.attempts[-1].number
    return Context(
        record.run_id,
        number,
        run.parent.parent.absolute(),
        f"runs/{record.run_id}/attempt_{number}",
    )


def _poll(record: RunRecord, launcher: Detachable, run: Path) -> RunRecord:
    for stage in record.attempts[-1].stages:
        if stage.status in ENDED:
            continue
        if stage.native_id is None:  # the supervisor was killed before it could submit this stage
            return close_attempt(record, RunStatus.INTERRUPTED)
        code = launcher.poll(_launch(record, stage))
        directory = (run.parent.parent / str(stage.log)).parent
        if code is None:
            status = RunStatus.RUNNING
            if launcher.is_here and not (directory / CLAIM).exists():
                status = RunStatus.PENDING
            return update_stage(record, stage.name, status=status)
        if code in STOPPED:
            status = RunStatus.INTERRUPTED
        elif code:
            status = RunStatus.FAILED
        else:
            status = RunStatus.SUCCEEDED
        ended = timestamp()
        result = read_result(directory)
        if launcher.is_here and result is not None:
            ended = result.ended
        record = update_stage(record, stage.name, status=status, exit_code=code, ended=ended)
        if code:
            return close_attempt(record, status)
    return close_attempt(record, RunStatus.SUCCEEDED)


def _launch(record: RunRecord, stage: StageRecord) -> Launch:
    key = f"{record.run_id}/{record.attempts[-1].number}/{stage.name}"
    return Launch(
        str(stage.launcher), key, str(stage.native_id), str(stage.log), str(stage.started)
    )
