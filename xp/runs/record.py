"""Record of a run: one frozen RunRecord, rewritten atomically as `run.json` at each change.

`python -m xp.runs.record <dir>` prints it.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from xp.atomic import write_atomically
from xp.counted import counted
from xp.errors import ExitCode, XpError, nearest
from xp.launchers.base import now
from xp.security.names import is_name
from xp.tasks.length import FILE as LENGTH_FILE

FILE = "run.json"
LOCK = ".lock"
"""Lock file that the run's supervisor holds."""
FORMAT = 1


class RunStatus(StrEnum):
    """Status of a run, an attempt or a stage."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    CACHED = "cached"
    """The stage's result existed already."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Provenance:
    """The code that ran."""

    xp: str
    python: str
    commit: str | None
    """Commit of the checkout that xp was imported from; None: not a checkout."""
    is_dirty: bool | None
    """True if tracked files of that checkout were changed."""
    versions: Mapping[str, str | None]
    """Pinned package -> version in the job's interpreter; None: not installed."""


@dataclass(frozen=True)
class StageRecord:
    """One stage of one attempt."""

    name: str
    status: RunStatus = RunStatus.PENDING
    exit_code: int | None = None
    """Exit status of the stage's process; 128 + n: killed by signal n."""
    started: str | None = None
    """Start in UTC, ISO 8601, as all times of a record."""
    ended: str | None = None
    log: str | None = None
    """Path of the log, relative to the outputs root."""
    launcher: str | None = None
    native_id: str | None = None
    """Identifier of the job at its launcher: a process id, a job id."""
    stand_ins: tuple[str, ...] = ()
    """Parts that xp replaced in its job (`xp.job.Job.stand_ins`)."""


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt of the run; a resume or a restart makes another."""

    number: int
    status: RunStatus
    started: str
    ended: str | None
    provenance: Provenance
    stages: tuple[StageRecord, ...]
    supervisor: int | None = None
    """Process id of the supervisor, valid only while the run is held; None: detached, there is no supervisor."""
    host: str | None = None
    """Host name of the supervisor's machine."""
    training: Mapping[str, int | None] | None = None
    """Epochs (None: the steps were given), rollout steps and tasks of the training, as its stage computed them."""


@dataclass(frozen=True)
class RunRecord:
    """A run and all its attempts."""

    run_id: str
    status: RunStatus
    secrets: tuple[str, ...]
    """Names of the variables that held secrets at launch; their values are not stored."""
    attempts: tuple[AttemptRecord, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self), indent=2, ensure_ascii=False) + "\n"


def begin_attempt(
    record: RunRecord, stages: Sequence[str], provenance: Provenance, *, is_detached: bool = False
) -> RunRecord:
    """Add an attempt with all stages pending; an attempt that a killed supervisor left open is closed as
    interrupted."""
    if record.attempts and record.attempts[-1].status is RunStatus.RUNNING:
        record = close_attempt(record, RunStatus.INTERRUPTED)
    pending = tuple(StageRecord(name) for name in stages)
    supervisor, host = (None, None) if is_detached else (os.getpid(), platform.node())
    attempt = AttemptRecord(
        len(record.attempts) + 1, RunStatus.RUNNING, now(), None, provenance, pending, supervisor, host
    )
    return replace(record, status=RunStatus.RUNNING, attempts=(*record.attempts, attempt))


def update_stage(record: RunRecord, name: str, **changes: Any) -> RunRecord:
    """Change fields of a stage of the last attempt."""
    attempt = record.attempts[-1]
    stages = tuple(replace(stage, **changes) if stage.name == name else stage for stage in attempt.stages)
    return _with_last(record, replace(attempt, stages=stages))


def close_attempt(record: RunRecord, status: RunStatus) -> RunRecord:
    """End the last attempt and its current stage."""
    attempt = record.attempts[-1]
    stages = tuple(
        replace(stage, status=status, ended=now()) if stage.status is RunStatus.RUNNING else stage
        for stage in attempt.stages
    )
    return _with_last(replace(record, status=status), replace(attempt, status=status, ended=now(), stages=stages))


def write_record(directory: Path, record: RunRecord) -> None:
    """Replace `run.json` atomically: a reader always sees the old record or the new one."""
    write_atomically(directory / FILE, _with_length(directory, record).to_json())


def directory_of(outputs: Path, run_id: str) -> Path:
    """Directory of a run below the outputs root; raises XpError(RUN_DIR) if there is no such run."""
    if not is_name(run_id):
        raise XpError(f"{run_id!r} is not the id of a run; python -m xp runs list names the runs", ExitCode.RUN_DIR)
    directory = outputs / "runs" / run_id
    if not directory.is_dir():
        known = [file.parent.name for file in (outputs / "runs").glob(f"*/{FILE}")]
        raise no_such_run(run_id, known)
    return directory


def no_such_run(name: str, known: Iterable[str] = ()) -> XpError:
    """Makes the error for a name that no run has.

    Args:
        name: the name that was given.
        known: names of runs; the message suggests the nearest.
    """
    text = f"no such run: {name}{nearest(name, known)}; python -m xp runs list names the runs"
    return XpError(text, ExitCode.RUN_DIR)


def read_record(directory: Path) -> RunRecord:
    """The record of a run directory; raises XpError(RUN_DIR) if there is none, or if it is malformed."""
    from xp.reading import json_of
    from xp.runs.record_check import record_of

    file = directory / FILE
    if not file.exists():
        raise XpError(f"{file} does not exist: {directory} is not a run directory", ExitCode.RUN_DIR)
    value = json_of(file, ExitCode.RUN_DIR)
    try:
        record = record_of(value)
    except (ValueError, RecursionError) as error:
        raise XpError(f"{file} is not a run record: {error}", ExitCode.RUN_DIR) from None
    if record.run_id != (name := Path(os.path.abspath(directory)).name):
        raise XpError(f"{file} is the record of {record.run_id}, and its directory is named {name}", ExitCode.RUN_DIR)
    return record


def is_held(directory: Path) -> bool:
    """Returns whether a supervisor holds the run now.

    A record with status `running` and no supervisor belongs to a killed run.
    """
    from filelock import FileLock, Timeout

    if not (directory / LOCK).exists():
        return False
    try:
        FileLock(directory / LOCK).acquire(timeout=0).lock.release()
    except Timeout:
        return True
    except OSError:
        return False
    return False


def _with_length(directory: Path, record: RunRecord) -> RunRecord:
    """The record with the length of the last attempt's training, if its stage has written it."""
    if not record.attempts:
        return record
    from xp.reading import json_of
    from xp.runs.record_check import length_of

    last = record.attempts[-1]
    try:
        file = directory / f"attempt_{last.number}" / "train" / LENGTH_FILE
        found = length_of(json_of(file, ExitCode.RUN_DIR, max_bytes=10_000))
    except (XpError, ValueError):
        return record
    return _with_last(record, replace(last, training=found))


def _with_last(record: RunRecord, attempt: AttemptRecord) -> RunRecord:
    return replace(record, attempts=(*record.attempts[:-1], attempt))


def table(record: RunRecord) -> str:
    """The record in a few aligned lines."""
    lines = [f"{record.run_id}  {record.status}"]
    for attempt in record.attempts:
        commit = f"  {attempt.provenance.commit[:10]}" if attempt.provenance.commit else ""
        dirty = " (changed)" if attempt.provenance.is_dirty else ""
        lines.append(
            f"attempt_{attempt.number}  {attempt.status}  {attempt.started}{commit}{dirty}{_length(attempt.training)}"
        )
        for stage in attempt.stages:
            exit_code = "" if stage.exit_code is None else f"exit {stage.exit_code}"
            took = _seconds(stage.started, stage.ended)
            line = f"  {stage.name:12} {stage.status:12} {took:>9}  {exit_code:9} {stage.log or ''}"
            lines.append(line.rstrip())
        replaced = dict.fromkeys(one for stage in attempt.stages for one in stage.stand_ins)
        lines += [f"  not the real one: {', '.join(replaced)}"] if replaced else []
    return "\n".join(lines)


def _length(training: Mapping[str, int | None] | None) -> str:
    if training is None:
        return ""
    epochs = training["epochs"]
    how = "" if epochs is None else f" ({counted(epochs, 'epoch')} of {counted(training['num_tasks'] or 0, 'task')})"
    return f"  {counted(training['num_steps'] or 0, 'step')}{how}"


def _seconds(started: str | None, ended: str | None) -> str:
    if started is None:
        return ""
    end = datetime.fromisoformat(ended) if ended else datetime.now(UTC)
    return f"{(end - datetime.fromisoformat(started)).total_seconds():.1f} s"


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m xp.runs.record RUN_DIRECTORY", file=sys.stderr)
        return ExitCode.CONFIG
    from xp.security.terminal import guarded

    with guarded():
        return _print(argv[0])


def _print(place: str) -> int:
    try:
        directory = Path(place)
        record = read_record(directory)
        print(table(record))
        if record.status is RunStatus.RUNNING and not is_held(directory):
            print(
                f"no process runs it any more: its supervisor was killed; continue with python -m xp resume={directory}"
            )
    except XpError as error:
        print(f"xp: {error}", file=sys.stderr)
        return error.code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
