"""A run's record in memory: its attempts and their stages, and each change of them as a new record."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from xp.launchers.base import now

FORMAT = 1


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
    """Commit of the checkout that xp was imported from; None: not a checkout."""
    is_dirty: bool | None
    """True if tracked files of that checkout were changed."""
    versions: Mapping[str, str | None]
    """Pinned packages -> what the job's interpreter has; None: not installed."""


@dataclass(frozen=True)
class StageRecord:
    """One stage of one attempt."""

    name: str
    status: RunStatus = RunStatus.PENDING
    exit_code: int | None = None
    """128 + n: killed by signal n."""
    started: str | None = None
    """UTC, ISO 8601; so are all times here."""
    ended: str | None = None
    log: str | None = None
    """Relative to the outputs root."""
    launcher: str | None = None
    native_id: str | None = None
    """Identifier of the job at its launcher: a process id, a job id."""
    stand_ins: tuple[str, ...] = ()
    """Parts that xp replaced in its job (`xp.job.Job.stand_ins`)."""


@dataclass(frozen=True)
class AttemptRecord:
    """One go at the run; a resume or a restart makes another."""

    number: int
    status: RunStatus
    started: str
    ended: str | None
    provenance: Provenance
    stages: tuple[StageRecord, ...]
    supervisor: int | None = None
    """Process id of whoever follows it, true only while the run is held; None: nobody does, the launcher was left."""
    host: str | None = None
    """The machine of that process."""
    training: Mapping[str, int | None] | None = None
    """Epochs (None: the steps were given), rollout steps and tasks of the training, as its stage settled them."""


@dataclass(frozen=True)
class RunRecord:
    """A run and all its attempts."""

    run_id: str
    status: RunStatus
    """`running` while an attempt runs, else the status of the last attempt that trained (of a run without training: of
    the last attempt)."""
    secrets: tuple[str, ...]
    """Names of the variables that held secrets at launch; their values are nowhere."""
    attempts: tuple[AttemptRecord, ...] = ()
    user: str = ""
    """Login name of whoever began the run, or trusts it; empty in a record that was never written."""
    directory: str = ""
    """Absolute path of the run's directory, without links: a copy of the directory has another one."""

    @property
    def num_steps(self) -> int | None:
        """Rollout steps of the last training, as its stage settled them; None: none has begun."""
        return next((one.training["num_steps"] for one in reversed(self.attempts) if one.training), None)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT} | asdict(self), indent=2, ensure_ascii=False) + "\n"


def number_of(attempt: Path) -> int:
    """Number of an attempt by its directory's name, `attempt_<n>`; 0 for another name.

    Attempts are ordered by it, since file times change in a copy of a run.
    """
    number = attempt.name.removeprefix("attempt_")
    return int(number) if number.isascii() and number.isdigit() else 0


def begin_attempt(
    record: RunRecord, stages: Sequence[str], provenance: Provenance, *, is_detached: bool = False
) -> RunRecord:
    """Add an attempt with all stages pending; one that a killed supervisor left open is closed as interrupted."""
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
    return with_last(record, replace(attempt, stages=stages))


def close_attempt(record: RunRecord, status: RunStatus) -> RunRecord:
    """End the last attempt, and the stage that it was at; the run's status is that of its last training."""
    attempt = record.attempts[-1]
    stages = tuple(
        replace(stage, status=status, ended=now()) if stage.status is RunStatus.RUNNING else stage
        for stage in attempt.stages
    )
    closed = with_last(record, replace(attempt, status=status, ended=now(), stages=stages))
    return replace(closed, status=_status(closed))


def _status(record: RunRecord) -> RunStatus:
    """Status of the last attempt that trained, or of the last one if none did: an evaluation finishes no training."""
    training = [one for one in record.attempts if any(stage.name == "train" for stage in one.stages)]
    return (training or record.attempts)[-1].status


def with_last(record: RunRecord, attempt: AttemptRecord) -> RunRecord:
    """The record with another last attempt."""
    return replace(record, attempts=(*record.attempts[:-1], attempt))
