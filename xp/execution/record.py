"""Record of a run: its attempts and their stages, in memory and on disk.

It is one frozen RunRecord; each change is a new one, and `run.json` is rewritten atomically.
"""

from __future__ import annotations

import os
import platform
import pwd
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import timestamp
from xp.lib.atomic import try_lock, write_atomically
from xp.lib.codec import JsonFile
from xp.lib.reading import config_of, is_name, is_native_id, read_text
from xp.lib.text import counted
from xp.spec.launcher import Hardware
from xp.tasks.training_length import FILE as LENGTH_FILE

FILE = "run.json"
LOCK = ".lock"
"""Lock file that the run's supervisor holds."""
KILLED: Final = "killed"
"""Status of a run that is recorded as `running` and has no supervisor."""
FOREIGN: Final = "of elsewhere"
"""Status of a run that was begun elsewhere and is recorded as `running`; it is not queried."""


def _is_time(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without its zone")
    return text


Time = Annotated[str, AfterValidator(_is_time)]
"""Time in UTC, ISO 8601."""


class RunStatus(StrEnum):
    """Status of a run, an attempt or a stage."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    CACHED = "cached"
    """A stage whose result was there already."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Provenance:
    """The code that ran."""

    xp: str
    python: str
    commit: str | None
    """Commit of the checkout that xp was imported from. None means that it is not a checkout."""
    is_dirty: bool | None
    """True if tracked files of that checkout were changed."""
    versions: Mapping[str, str | None]
    """Pinned packages -> what the job's interpreter has. None means that it is not installed."""


@dataclass(frozen=True)
class StageRecord:
    """One stage of one attempt."""

    name: str
    status: RunStatus = RunStatus.PENDING
    exit_code: int | None = None
    """128 + n: killed by signal n."""
    started: Time | None = None
    ended: Time | None = None
    log: str | None = None
    """Relative to the outputs root."""
    launcher: str | None = None
    native_id: str | None = None
    """Identifier of the job at its launcher: a process id, a job id."""
    stubs: tuple[str, ...] = ()
    """Parts that xp replaced in its job (`xp.planning.job.Job.stubs`)."""


@dataclass(frozen=True)
class SettledLength(JsonFile):
    """Length of a training that its stage has computed (`xp.tasks.training_length`)."""

    num_steps: int
    num_tasks: int
    epochs: int | None
    """Passes over the training tasks; None if the steps were given."""


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt of the run. A resume or a restart begins another one."""

    number: int
    status: RunStatus
    started: Time
    ended: Time | None
    provenance: Provenance
    stages: tuple[StageRecord, ...]
    supervisor: int | None = None
    """Process id of the supervisor, valid only while the run is held. None means that the run is detached."""
    host: str | None = None
    """The machine of that process."""
    training: SettledLength | None = None
    """Length of the training, as its stage settled it."""


@dataclass(frozen=True)
class RunRecord(JsonFile):
    """A run and all its attempts."""

    run_id: str
    status: RunStatus
    """`running` while an attempt runs, else the status of the last attempt that trained (of a run without training: of
    the last attempt)."""
    secrets: tuple[str, ...]
    """Names of the variables that held secrets at launch; their values are nowhere."""
    attempts: tuple[AttemptRecord, ...] = ()
    user: str = ""
    """Login name of the user who began the last attempt; empty in a record that was never written."""
    directory: str = ""
    """Absolute path of the run's directory, without links: a copy of the directory has another one."""
    command: tuple[str, ...] = ()
    """Words of the command line that began it, then the changes by later attempts. Empty means that it was begun from
    Python."""
    format: Literal[1] = 1
    """Version of this record's form."""

    @property
    def minutes(self) -> float:
        """Time of all attempts that have ended."""
        return sum(
            minutes_between(attempt.started, attempt.ended)
            for attempt in self.attempts
            if attempt.ended is not None
        )

    @property
    def num_steps(self) -> int | None:
        """Rollout steps of the last training, as its stage settled them. None means that none has begun."""
        return next(
            (attempt.training.num_steps for attempt in reversed(self.attempts) if attempt.training),
            None,
        )


def number_of(attempt: Path) -> int:
    """Number of an attempt by its directory's name, `attempt_<n>`; 0 for another name.

    Attempts are ordered by it, since file times change in a copy of a run.
    """
    number = attempt.name.removeprefix("attempt_")
    if number.isascii() and number.isdigit():
        return int(number)
    return 0


def begin_attempt(
    record: RunRecord, stages: Sequence[str], provenance: Provenance, *, is_detached: bool = False
) -> RunRecord:
    """Adds an attempt with all stages pending; one that a killed supervisor left open is closed as interrupted."""
    if record.attempts and record.attempts[-1].status is RunStatus.RUNNING:
        record = close_attempt(record, RunStatus.INTERRUPTED)
    pending = tuple(StageRecord(name) for name in stages)
    supervisor, host = (None, None) if is_detached else (os.getpid(), platform.node())
    attempt = AttemptRecord(
        len(record.attempts) + 1,
        RunStatus.RUNNING,
        timestamp(),
        None,
        provenance,
        pending,
        supervisor,
        host,
    )
    # `write_record` names the user and the directory: who resumes a copy of a run takes it over.
    return replace(
        record,
        status=RunStatus.RUNNING,
        attempts=(*record.attempts, attempt),
        user="",
        directory="",
    )


def update_stage(record: RunRecord, name: str, **changes: Any) -> RunRecord:
    """Changes fields of a stage of the last attempt."""
    attempt = record.attempts[-1]
    stages = tuple(
        replace(stage, **changes) if stage.name == name else stage for stage in attempt.stages
    )
    return _with_last(record, replace(attempt, stages=stages))


def close_attempt(record: RunRecord, status: RunStatus) -> RunRecord:
    """Ends the last attempt, and the stage that it was at; the run has its status."""
    attempt = record.attempts[-1]
    stages = tuple(
        replace(stage, status=status, ended=timestamp())
        if stage.status is RunStatus.RUNNING
        else stage
        for stage in attempt.stages
    )
    closed = _with_last(record, replace(attempt, status=status, ended=timestamp(), stages=stages))
    return replace(closed, status=status)


def _with_last(record: RunRecord, attempt: AttemptRecord) -> RunRecord:
    """The record with another last attempt."""
    return replace(record, attempts=(*record.attempts[:-1], attempt))


def write_record(directory: Path, record: RunRecord) -> None:
    """Replaces `run.json` atomically: a reader always sees the old record or the new one.

    A record without a user becomes one of this user and this directory.
    """
    if not record.user:
        user, here = begun_here(directory)
        record = replace(record, user=user, directory=here)
    write_atomically(directory / FILE, _with_length(directory, record).to_json())


def read_record(directory: Path) -> RunRecord:
    """The record of a run directory; raises XpError(RUN_DIR) if there is none, or if it is malformed."""
    file = directory / FILE
    if not file.exists():
        raise XpError(
            f"{file} does not exist: {directory} is not a run directory", ExitCode.RUN_DIR
        )
    record = config_of(file, _parsed, what="a run record", below=directory)
    name = Path(os.path.abspath(directory)).name
    if record.run_id != name:
        raise XpError(
            f"{file} is the record of {record.run_id}, and its directory is named {name}",
            ExitCode.RUN_DIR,
        )
    return record


def _parsed(text: str) -> RunRecord:
    """A record from its text; raises ValueError for a word that becomes a path, an argument or a process id and that
    xp would not have written."""
    record = RunRecord.from_json(text)
    _check(is_name(record.run_id), "run_id", record.run_id)
    for number, attempt in enumerate(record.attempts, start=1):
        attempt_path = f"runs/{record.run_id}/attempt_{number}"
        _check(attempt.number == number, f"{attempt_path}: number", attempt.number)
        # 1 and below mean the first process, groups, or all processes.
        _check(
            attempt.supervisor is None or attempt.supervisor > 1,
            f"{attempt_path}: supervisor",
            attempt.supervisor,
        )
        for stage in attempt.stages:
            _check(is_name(stage.name), f"{attempt_path}: name of a stage", stage.name)
            _check(
                stage.log in (None, f"{attempt_path}/{stage.name}/log.txt"),
                f"{attempt_path}: log",
                stage.log,
            )
            _check(
                stage.native_id is None or is_native_id(stage.native_id),
                f"{attempt_path}: job",
                stage.native_id,
            )
    return record


def _check(is_legal: bool, what: str, value: object) -> None:
    if not is_legal:
        raise ValueError(f"{what}: {value!r} is not what xp writes there")


def is_ours(directory: Path) -> bool:
    """Returns whether this user began the run's last attempt in this directory.

    People send each other run directories, whose records name jobs: only of a run of one's own are they queried.
    """
    try:
        record = read_record(directory)
    except XpError:
        return False
    return (record.user, record.directory) == begun_here(directory)


def status_of(
    directory: Path, record: RunRecord, has_jobs: Callable[[], bool] | None = None
) -> str:
    """Status in the record; `running` is replaced if no process supervises the run.

    Args:
        has_jobs: asks a cluster whether a run without a supervisor has jobs. None means that it is not asked.
    """
    if record.status is not RunStatus.RUNNING or is_held(directory):
        return record.status.value
    if not is_ours(directory):
        return FOREIGN
    # The last record is written before the lock is released: a run that ended meanwhile is seen now.
    record = read_record(directory)
    is_detached = bool(record.attempts) and record.attempts[-1].supervisor is None
    is_live = is_detached and (has_jobs is None or has_jobs())
    if record.status is RunStatus.RUNNING and not is_live:
        return KILLED
    return record.status.value


def begun_here(directory: Path) -> tuple[str, str]:
    """User and directory in the record of a run that this user begins: the login name, or else the number, and the
    absolute path."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return user, os.path.realpath(directory)


def is_held(directory: Path) -> bool:
    """Returns whether a supervisor holds the run now.

    A record with status `running` and no supervisor belongs to a killed run.
    """
    if not (directory / LOCK).exists():
        return False
    with suppress(OSError), try_lock(directory / LOCK) as is_free:
        return not is_free
    return False


def _with_length(directory: Path, record: RunRecord) -> RunRecord:
    """The record with the length of the last attempt's training, if its stage has written it."""
    if not record.attempts:
        return record
    last = record.attempts[-1]
    try:
        file = directory / f"attempt_{last.number}" / "train" / LENGTH_FILE
        training = SettledLength.from_json(read_text(file, ExitCode.RUN_DIR, below=directory))
    except (XpError, ValueError):
        return record
    return _with_last(record, replace(last, training=training))


def table(record: RunRecord, outputs: Path, status_now: str) -> str:
    """The record in a few aligned lines.

    Args:
        outputs: the outputs root, for whole paths.
        status_now: `status_of` of a run that is recorded as running.
    """
    lines = [f"{record.run_id}  {_now(record.status, status_now)}"]
    for attempt in record.attempts:
        head = f"attempt_{attempt.number}  {_now(attempt.status, status_now)}  {attempt.started}"
        if attempt.provenance.commit:
            head += f"  {attempt.provenance.commit[:10]}"
        if attempt.provenance.is_dirty:
            head += " (changed)"
        lines.append(head + _length(attempt.training))
        for stage in attempt.stages:
            took = ""
            exit_code = ""
            log = ""
            if stage.started is not None:
                took = f"{60 * minutes_between(stage.started, stage.ended):.1f} s"
            if stage.exit_code is not None:
                exit_code = f"exit {stage.exit_code}"
            if stage.log is not None:
                log = str(outputs / stage.log)
            line = f"  {stage.name:12} {_now(stage.status, status_now):12} {took:>9}  {exit_code:9} {log}"
            lines.append(line.rstrip())
        replaced = dict.fromkeys(stub for stage in attempt.stages for stub in stage.stubs)
        if replaced:
            lines += [f"  stubs in place of real parts: {', '.join(replaced)}"]
    return "\n".join(lines)


def _now(status: RunStatus, status_now: str) -> str:
    if status is RunStatus.RUNNING:
        return status_now
    return status.value


def _length(training: SettledLength | None) -> str:
    if training is None:
        return ""
    text = f"  {counted(training.num_steps, 'step')}"
    if training.epochs is not None:
        text += f" ({counted(training.epochs, 'epoch')} of {counted(training.num_tasks, 'task')})"
    return text


def minutes_between(started: str, ended: str | None) -> float:
    end = datetime.now(UTC)
    if ended:
        end = datetime.fromisoformat(ended)
    return (end - datetime.fromisoformat(started)).total_seconds() / 60


def time_text(record: RunRecord, hardware: Hardware) -> str:
    """Time of the run with that of the last attempt's stages, GPU-hours, and the price if it is known."""
    stages = [
        f"{stage.name} {minutes_between(stage.started, stage.ended):.1f}"
        for stage in record.attempts[-1].stages
        if stage.started is not None and stage.ended is not None
    ]
    text = f"{record.minutes:.1f} min"
    if stages:
        text += f" ({', '.join(stages)})"
    hours = record.minutes / 60
    num_gpus = hardware.accelerators_per_node * hardware.num_nodes
    if num_gpus:
        text += f", {hours * num_gpus:.2f} GPU-hours"
    if hardware.usd_per_hour is not None:
        text += f", {hours * hardware.usd_per_hour:.2f} USD"
    return text
