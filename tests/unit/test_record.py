"""The run's record: its changes are new values, and on disk it is whole or the one before."""

from __future__ import annotations

import errno
import os
import platform
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution import detached
from xp.execution.launchers.base import timestamp
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
    number_of,
    read_record,
    table,
    time_text,
    update_stage,
    write_record,
)
from xp.execution.run_directory import is_unborn, resource_errors
from xp.lib.atomic import TEMPORARY, write_atomically
from xp.tasks.store import writing_below
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
    record = update_stage(
        begun(),
        "prepare",
        status=RunStatus.FAILED,
        exit_code=7,
        started=timestamp(),
        ended=timestamp(),
    )
    write_record(directory, close_attempt(record, RunStatus.FAILED))
    expected = close_attempt_times(read_record(directory), close_attempt(record, RunStatus.FAILED))
    user, place = begun_here(directory)
    assert place == str(directory)
    assert read_record(directory) == replace(expected, user=user, directory=place)


def test_stand_ins_are_on_record_and_in_the_table(directory: Path) -> None:
    record = update_stage(begun(), "train", stubs=("vLLM: xp's own engine", "NCCL: gloo"))
    write_record(directory, record)
    assert read_record(directory).attempts[0].stages[1].stubs == (
        "vLLM: xp's own engine",
        "NCCL: gloo",
    )
    lines = table(record, Path(), "running").splitlines()
    assert lines[-1] == "  not the real one: vLLM: xp's own engine, NCCL: gloo"
    assert "not the real one" not in table(begun(), Path(), "running")


def close_attempt_times(read: RunRecord, expected: RunRecord) -> RunRecord:
    """The expected record with the read one's time of closing."""
    from dataclasses import replace

    last = replace(expected.attempts[-1], ended=read.attempts[-1].ended)
    return replace(expected, attempts=(*expected.attempts[:-1], last))


def test_closing_an_attempt_closes_the_stage_that_it_was_at() -> None:
    closed = close_attempt(
        update_stage(begun(), "prepare", status=RunStatus.RUNNING), RunStatus.INTERRUPTED
    )
    assert [stage.status for stage in closed.attempts[0].stages] == [
        RunStatus.INTERRUPTED,
        RunStatus.PENDING,
    ]
    assert closed.status is closed.attempts[0].status is RunStatus.INTERRUPTED


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 99}', '{"format": 1}', '{"format": 1, "run_id": 3}']
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(XpError, match=r"run\.json") as caught:
        read_record(tmp_path)
    assert caught.value.code == ExitCode.RUN_DIR


def test_a_directory_without_a_record_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(XpError, match="not a run directory"):
        read_record(tmp_path / "nowhere")


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


def test_the_table_shows_every_stage_of_every_attempt(tmp_path: Path) -> None:
    killed = StageRecord("train", RunStatus.FAILED, 137, NOON, "2026-11-21T12:10:00Z")
    clean = Provenance("0.1.0", "3.11.7", None, False, {})
    second = replace(attempt(2, 90, DONE, training=SettledLength(6, 23, 3)), provenance=clean)
    record = replace(
        EMPTY, attempts=(attempt(1, 600, DONE, killed, training=SettledLength(4, 9, None)), second)
    )
    head, first, prepared, train, again, _ = table(record, Path(), "running").splitlines()
    assert head == "run  pending"
    assert first == f"attempt_1  succeeded  {NOON}  0000000000 (changed)  4 steps"
    assert prepared.split() == ["prepare", "succeeded", "30.0", "s", "exit", "0", LOG]
    assert train == "  train        failed         600.0 s  exit 137"
    assert again == f"attempt_2  succeeded  {NOON}  6 steps (3 epochs of 23 tasks)"
    assert f"{tmp_path}/{LOG}" in table(record, tmp_path, "running")
    assert "  train        pending" in table(begun(), tmp_path, "running").splitlines()


def test_a_run_has_the_time_of_its_attempts_and_the_steps_of_its_last_training() -> None:
    trained = (
        attempt(1, 600, training=SettledLength(4, 9, None)),
        attempt(2, 90, training=SettledLength(6, 9, 1)),
    )
    record = replace(EMPTY, attempts=(*trained, attempt(3, None)))
    assert record.minutes == 11.5
    assert record.num_steps == 6
    assert EMPTY.minutes == 0
    assert EMPTY.num_steps is None
    gpus = compose(["hardware=2x4xA100", "model=qwen3-4b", "hardware.usd_per_hour=30"]).hardware
    assert time_text(record, gpus) == "11.5 min, 1.53 GPU-hours, 5.75 USD"
    one = replace(EMPTY, attempts=(attempt(1, 90, DONE, StageRecord("train", started=NOON)),))
    assert time_text(one, compose([]).hardware) == "1.5 min (prepare 0.5)"


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


def test_an_attempt_is_changed_and_no_other(directory: Path) -> None:
    record = begin_attempt(close_attempt(begun(), RunStatus.FAILED), ["train"], HERE)
    assert (record.attempts[1].supervisor, record.attempts[1].host) == (
        os.getpid(),
        platform.node(),
    )
    record = update_stage(record, "train", exit_code=3)
    assert [[stage.exit_code for stage in one.stages] for one in record.attempts] == [
        [None, None],
        [3],
    ]
    third = begin_attempt(record, ["train"], HERE, is_detached=True)
    statuses = [RunStatus.FAILED, RunStatus.INTERRUPTED, RunStatus.RUNNING]
    assert [one.status for one in third.attempts] == statuses
    assert third.attempts[2].supervisor is None
    assert third.attempts[2].host is None
    write_record(directory, replace(third, user="another", directory="/x"))
    assert read_record(directory).user == "another"
    assert read_record(directory).directory == "/x"
    with pytest.raises(ValueError, match="a time without its zone"):
        RunRecord.from_json(
            replace(
                EMPTY, attempts=(replace(attempt(1, 9), started="2026-11-21T12:00:00"),)
            ).to_json()
        )


@pytest.mark.parametrize(
    ("name", "number"),
    [("attempt_7", 7), ("attempt_10", 10), ("attempt_x", 0), ("attempt_²", 0), ("attempt_", 0)],
)
def test_the_number_of_an_attempts_directory(name: str, number: int) -> None:
    assert number_of(Path("run", name)) == number


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"number": 2}, "number: 2"),
        ({"supervisor": 1}, "supervisor: 1"),
        ({"supervisor": -7}, "supervisor: -7"),
        ({"stages": (StageRecord("../x"),)}, "name of a stage: '../x'"),
        ({"stages": (StageRecord("train", log=LOG),)}, "log: "),
        ({"stages": (StageRecord("train", native_id="-9 x"),)}, "job: '-9 x'"),
    ],
)
def test_a_record_names_only_what_xp_writes(
    directory: Path, changes: dict[str, Any], fault: str
) -> None:
    legal = replace(
        EMPTY, attempts=(attempt(1, 9, DONE, StageRecord("train", native_id="17"), supervisor=2),)
    )
    (directory / "run.json").write_text(legal.to_json())
    assert read_record(directory) == legal
    (directory / "run.json").write_text(
        replace(EMPTY, attempts=(replace(attempt(1, 9), **changes),)).to_json()
    )
    with pytest.raises(XpError, match=re.escape(f"runs/run/attempt_1: {fault}")):
        read_record(directory)


def test_a_detached_run_whose_end_cannot_be_written_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory / "run.json"))

    record = begin_attempt(EMPTY, ["train"], HERE, is_detached=True)
    write_record(directory, record)
    monkeypatch.setattr(detached, "detachable", lambda *_: object())
    monkeypatch.setattr(detached, "_poll", lambda *_: close_attempt(record, RunStatus.SUCCEEDED))
    monkeypatch.setattr(detached, "write_record", full)
    with pytest.raises(XpError, match="No space left on device") as caught:
        detached.current(directory)
    assert caught.value.code == ExitCode.RESOURCE


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EACCES, "Permission denied", "/x/file"), "/x/file: Permission denied"),
        (OSError(errno.EACCES, "Permission denied"), "here: Permission denied"),
        (OSError("odd"), "here: odd"),
        (
            shutil.Error([("a", "b", "no space"), ("c", "d", "other")]),
            "here: 2 files could not be copied: no space; make room there, or set outputs=DIR",
        ),
    ],
)
def test_an_error_of_the_disk_names_its_place(error: OSError, text: str) -> None:
    with pytest.raises(XpError) as caught, resource_errors(Path("here")):
        raise error
    assert str(caught.value) == text
    assert caught.value.code == ExitCode.RESOURCE
    with pytest.raises(XpError) as caught, writing_below(Path("here")):
        raise error
    assert (
        f"cannot write the task set: {error.strerror or error}: {error.filename or 'here'}\n"
        in str(caught.value)
    )


def test_a_directory_of_a_supervisor_that_wrote_nothing_is_unborn(directory: Path) -> None:
    assert is_unborn(directory)
    for name in (".lock", "spec.yaml", f"run.json{TEMPORARY}"):
        (directory / name).touch()
    assert is_unborn(directory)
    (directory.parent / "link").symlink_to(directory)
    assert not is_unborn(directory.parent / "link")
    assert not is_unborn(directory / "spec.yaml")
    (directory / "run.json").touch()
    assert not is_unborn(directory)
