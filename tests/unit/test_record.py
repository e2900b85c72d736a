"""The run's record: its changes are new values, and on disk it is whole or the one before."""

from __future__ import annotations

import errno
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.record import (
    AttemptRecord,
    Provenance,
    RunRecord,
    RunStatus,
    SettledLength,
    StageRecord,
    begin_attempt,
    begun_here,
    close_attempt,
    read_record,
    table,
    time_text,
    update_stage,
    write_record,
)
from xp.execution.run_directory import is_unborn, resource_errors
from xp.lib.atomic import TEMPORARY, write_atomically
from xp.tasks.training_length import FILE as LENGTH_FILE

HERE = Provenance("0.1.0", "3.11.7", "0" * 40, True, {"trl": "1.16.0", "gone": None})
EMPTY = RunRecord("run", RunStatus.PENDING, ("MY_KEY",))


def begun() -> RunRecord:
    return begin_attempt(EMPTY, ["prepare", "train"], HERE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Directory of the run; its name is the run's id."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_a_record_survives_the_disk(directory: Path) -> None:
    record = update_stage(begun(), "prepare", status=RunStatus.FAILED, exit_code=7)
    record = update_stage(record, "train", stubs=("vLLM: xp's own engine", "NCCL: gloo"))
    closed = close_attempt(record, RunStatus.FAILED)
    write_record(directory, closed)
    user, place = begun_here(directory)
    assert place == str(directory)
    assert read_record(directory) == replace(closed, user=user, directory=place)
    last = table(record, Path(), "running").splitlines()[-1]
    assert last == "  stubs in place of real parts: vLLM: xp's own engine, NCCL: gloo"


def test_closing_an_attempt_closes_the_stage_that_it_was_at() -> None:
    closed = close_attempt(
        update_stage(begun(), "prepare", status=RunStatus.RUNNING), RunStatus.INTERRUPTED
    )
    assert [stage.status for stage in closed.attempts[0].stages] == [
        RunStatus.INTERRUPTED,
        RunStatus.PENDING,
    ]
    assert closed.status is closed.attempts[0].status is RunStatus.INTERRUPTED


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 99}', '{"format": 1, "run_id": 3}'])
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(XpError, match=r"run\.json") as caught:
        read_record(tmp_path)
    assert caught.value.code == ExitCode.RUN_DIR


def test_an_interrupted_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    write_atomically(file, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def attempt(number: int, seconds: int | None, *stages: StageRecord, **more: Any) -> AttemptRecord:
    """An attempt that began at 12:00 and, unless it goes on, took so many seconds."""
    ended = None if seconds is None else f"2026-11-21T12:{seconds // 60:02}:{seconds % 60:02}Z"
    status = RunStatus.RUNNING if seconds is None else RunStatus.SUCCEEDED
    return AttemptRecord(number, status, NOON, ended, HERE, stages, **more)


NOON = "2026-11-21T12:00:00Z"
LOG = "runs/run/attempt_1/prepare/log.txt"
DONE = StageRecord("prepare", RunStatus.SUCCEEDED, 0, NOON, "2026-11-21T12:00:30Z", LOG)


def test_the_table_shows_every_stage_of_every_attempt() -> None:
    killed = StageRecord("train", RunStatus.FAILED, 137, NOON, "2026-11-21T12:10:00Z")
    first = attempt(1, 600, DONE, killed, training=SettledLength(4, 9, None))
    second = attempt(2, 90, training=SettledLength(6, 23, 3))
    record = replace(EMPTY, attempts=(first, second))
    assert (record.minutes, record.num_steps) == (11.5, 6)
    lines = table(record, Path(), "running").splitlines()
    assert lines[1] == f"attempt_1  succeeded  {NOON}  0000000000 (changed)  4 steps"
    assert lines[2].split() == ["prepare", "succeeded", "30.0", "s", "exit", "0", LOG]
    assert lines[3] == "  train        failed         600.0 s  exit 137"
    assert lines[4].endswith("6 steps (3 epochs of 23 tasks)")
    gpus = compose(["hardware=2x4xA100", "model=qwen3-4b", "hardware.usd_per_hour=30"]).hardware
    assert time_text(record, gpus) == "11.5 min, 1.53 GPU-hours, 5.75 USD"


def test_a_length_that_the_stage_has_settled_is_in_the_last_attempts_record(
    directory: Path,
) -> None:
    record = begin_attempt(close_attempt(begun(), RunStatus.FAILED), ["train"], HERE)
    write_record(directory, EMPTY)
    assert read_record(directory).attempts == ()
    for number in (1, 2):
        file = directory / f"attempt_{number}/train" / LENGTH_FILE
        file.parent.mkdir(parents=True)
        file.write_text(SettledLength(10 * number, 9, None).to_json())
    write_record(directory, record)
    assert [one.training and one.training.num_steps for one in read_record(directory).attempts] == [
        None,
        20,
    ]


def test_an_attempt_is_changed_and_no_other() -> None:
    record = begin_attempt(close_attempt(begun(), RunStatus.FAILED), ["train"], HERE)
    last = record.attempts[1]
    assert (last.supervisor, last.host) == (os.getpid(), platform.node())
    record = update_stage(record, "train", exit_code=3)
    codes = [[stage.exit_code for stage in one.stages] for one in record.attempts]
    assert codes == [[None, None], [3]]
    third = begin_attempt(record, ["train"], HERE, is_detached=True)
    statuses = [RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.RUNNING]
    assert [one.status for one in third.attempts] == statuses
    assert third.attempts[2].supervisor is third.attempts[2].host is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EACCES, "Permission denied", "/x/file"), "/x/file: Permission denied"),
        (OSError("odd"), "here: odd"),
        (shutil.Error([("a", "b", "no space")] * 2), "here: 2 files could not be copied: no space"),
    ],
)
def test_an_error_of_the_disk_names_its_place(error: OSError, text: str) -> None:
    with pytest.raises(XpError, match=f"^{text}") as caught, resource_errors(Path("here")):
        raise error
    assert caught.value.code == ExitCode.RESOURCE


def test_a_directory_of_a_supervisor_that_wrote_nothing_is_unborn(directory: Path) -> None:
    assert is_unborn(directory)
    for name in (".lock", "spec.yaml", f"run.json{TEMPORARY}"):
        (directory / name).touch()
    assert is_unborn(directory)
    (directory.parent / "link").symlink_to(directory)
    assert not is_unborn(directory.parent / "link")
    (directory / "run.json").touch()
    assert not is_unborn(directory)
