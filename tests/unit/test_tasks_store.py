"""A set is taken for whole only if every hash says so, and is refused with the field that differs."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from tests.support.fake_provider import FakeWorld
from xp.errors import ExitCode, XpError
from xp.lib.atomic import private_directory
from xp.tasks.config import PrepareConfig, Purpose
from xp.tasks.manifest import read_manifest
from xp.tasks.prepare import prepare
from xp.tasks.row import TaskRow, read_rows, schema, write_rows
from xp.tasks.store import TaskSet, open_verified


def build(root: Path, **behaviour: object) -> tuple[FakeWorld, PrepareConfig, TaskSet]:
    world = FakeWorld(root, splits={"train": 70, "test": 5}, **behaviour)
    return world, world.config(), prepare(world.config(), {}, root)


@cache
def built_once() -> tuple[PrepareConfig, TaskSet]:
    _, config, task_set = build(private_directory("test"))
    return config, task_set


@pytest.fixture
def copied(tmp_path: Path) -> tuple[PrepareConfig, Path]:
    config, task_set = built_once()
    return config, Path(shutil.copytree(task_set.path, tmp_path / "tasks" / task_set.key))


def test_rows_are_read_by_purpose_in_the_order_of_the_selection() -> None:
    _, task_set = built_once()
    whole = open_verified(task_set.path)
    assert whole.manifest == read_manifest(task_set.path)
    train = list(whole.rows("train"))
    assert [row.index for row in train] == list(range(70))
    held_out = [row.task_id for row in whole.rows(Purpose.HELD_OUT)]
    assert held_out == [f"fake/test/{index}" for index in range(5)]
    assert [message["content"] for message in train[3].messages] == ["Think.", "Solve: train 3"]


def test_nothing_of_a_tasks_own_description_reaches_the_set() -> None:
    _, task_set = built_once()
    raw = b"".join(file.read_bytes() for file in task_set.path.iterdir())
    assert b"CANARY" not in raw
    assert not any("CANARY" in repr(row) for row in task_set.rows())
    assert "spec" not in schema().names


def test_rows_survive_the_table_byte_for_byte(tmp_path: Path) -> None:
    tail = ("h", ({"role": "user", "content": "\u2028é\n"},), "[]", 0.5)
    rows = [
        TaskRow(f"a/train/{index}", "a", purpose, "train", index, *tail)
        for index, purpose in ((2**40, Purpose.TRAIN), (0, Purpose.HELD_OUT))
    ]
    digests = {write_rows(tmp_path / name, rows) for name in ("one", "two")}
    assert len(digests) == 1
    assert list(read_rows(tmp_path / "one")) == rows


def refusal(path: Path) -> str:
    with pytest.raises(XpError) as caught:
        open_verified(path)
    assert caught.value.code is ExitCode.TASKS
    assert "xp prepare" in str(caught.value)
    return str(caught.value)


def test_a_set_that_is_missing_damaged_or_misnamed_is_refused(
    copied: tuple[PrepareConfig, Path],
) -> None:
    _, path = copied
    assert "no task set" in refusal(path.with_name("nothing"))
    moved = path.rename(path.with_name("0123"))
    assert f"it is the set {path.name}, in a directory of another name" in refusal(moved)
    moved.rename(path)
    (path / "manifest.json").rename(path / "kept")
    assert "no manifest.json" in refusal(path)
    (path / "kept").rename(path / "manifest.json")
    (path / "tasks.parquet").unlink()
    assert "tasks.parquet is missing" in refusal(path)


def test_a_set_that_lacks_more_than_is_permitted_is_not_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 10, "test": 10}, failing=["train/3"])
    task_set = prepare(world.config(allow_missing_fraction=0.1), {}, tmp_path)
    assert open_verified(task_set.path).num_tasks("train") == 9
    prepare(world.config(allow_missing_fraction=0.1), {}, tmp_path)
    assert "recognised" in capsys.readouterr().out
    with pytest.raises(XpError, match="could not be prepared"):
        prepare(world.config(allow_missing_fraction=0.0), {}, tmp_path)
