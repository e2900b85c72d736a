"""Record of a run on disk: one frozen RunRecord, rewritten atomically as `run.json` at each change.

`python -m xp.runs.record <dir>` prints it.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.reading import json_of
from xp.lib.terminal import guarded, shown
from xp.lib.text import counted
from xp.runs.attempts import (
    AttemptRecord,
    Provenance,
    RunRecord,
    RunStatus,
    StageRecord,
    begin_attempt,
    close_attempt,
    number_of,
    update_stage,
    with_last,
)
from xp.runs.record_check import length_of, record_of
from xp.tasks.training_length import FILE as LENGTH_FILE

__all__ = [
    "AttemptRecord",
    "Provenance",
    "RunRecord",
    "RunStatus",
    "StageRecord",
    "begin_attempt",
    "check_ours",
    "close_attempt",
    "is_held",
    "number_of",
    "read_record",
    "table",
    "update_stage",
    "write_record",
]

FILE = "run.json"
LOCK = ".lock"
"""Lock file that the run's supervisor holds."""


def write_record(directory: Path, record: RunRecord) -> None:
    """Replace `run.json` atomically: a reader always sees the old record or the new one.

    A record without a user becomes one of this user and this directory.
    """
    if not record.user:
        user, place = begun_here(directory)
        record = replace(record, user=user, directory=place)
    write_atomically(directory / FILE, _with_length(directory, record).to_json())


def read_record(directory: Path) -> RunRecord:
    """The record of a run directory; raises XpError(RUN_DIR) if there is none, or if it is malformed."""
    file = directory / FILE
    if not file.exists():
        raise XpError(f"{file} does not exist: {directory} is not a run directory", ExitCode.RUN_DIR)
    value = json_of(file, ExitCode.RUN_DIR, below=directory)
    try:
        record = record_of(value)
    except (ValueError, RecursionError) as error:
        raise XpError(f"{file} is not a run record: {error}", ExitCode.RUN_DIR) from None
    if record.run_id != (name := Path(os.path.abspath(directory)).name):
        raise XpError(f"{file} is the record of {record.run_id}, and its directory is named {name}", ExitCode.RUN_DIR)
    return record


def is_ours(directory: Path) -> bool:
    """Returns whether this user began the run in this directory, or trusts it.

    People send each other run directories, whose records name jobs, files and modules: only of a run of one's own are
    the jobs queried, the record closed and the model loaded. `python -m xp runs trust RUN` accepts another one.
    """
    try:
        record = read_record(directory)
    except XpError:
        return False
    return (record.user, record.directory) == begun_here(directory)


def check_ours(directory: Path) -> None:
    """Raise XpError(RUN_DIR) for a run of another user, or of another place."""
    if not is_ours(directory):
        raise XpError(
            f"{directory} was not begun here: it was moved or copied, or another user began it. Going on with it runs"
            f" what it names: look at `python -m xp plan resume={directory}`, and if you trust it,"
            f" `python -m xp runs trust {directory.name} outputs={directory.parent.parent}`",
            ExitCode.RUN_DIR,
        )


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
    last = record.attempts[-1]
    try:
        file = directory / f"attempt_{last.number}" / "train" / LENGTH_FILE
        found = length_of(json_of(file, ExitCode.RUN_DIR, below=directory))
    except (XpError, ValueError):
        return record
    return with_last(record, replace(last, training=found))


def table(record: RunRecord, outputs: Path | None = None) -> str:
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
            log = "" if stage.log is None else stage.log if outputs is None else str(outputs / stage.log)
            line = f"  {stage.name:12} {stage.status:12} {took:>9}  {exit_code:9} {log}"
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
    with guarded():
        return _print(argv[0])


def _print(place: str) -> int:
    try:
        directory = Path(place)
        record = read_record(directory)
        print(shown(table(record)))
        if record.status is RunStatus.RUNNING and not is_held(directory):
            print(
                f"no process runs it any more: its supervisor was killed; continue with python -m xp resume={directory}"
            )
    except XpError as error:
        print(f"xp: {shown(str(error))}", file=sys.stderr)
        return error.code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
