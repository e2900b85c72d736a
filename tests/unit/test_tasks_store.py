"""A set is taken for whole only if every hash says so, and is refused with the field that differs."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_provider import FakeWorld
from xp.errors import ExitCode, XpError
from xp.lib import private_directory as own_directory
from xp.tasks.config import PrepareConfig, Purpose, Selection
from xp.tasks.manifest import read_manifest
from xp.tasks.prepare import prepare
from xp.tasks.request import request_key
from xp.tasks.row import TaskRow, read_rows, schema, write_rows
from xp.tasks.store import Broken, TaskSet, open_verified, prove
from xp.testing.jobs import PATIENCE_S


def build(root: Path, **behaviour: object) -> tuple[FakeWorld, PrepareConfig, TaskSet]:
    world = FakeWorld(root, splits={"train": 70, "test": 5}, **behaviour)
    return world, world.config(), prepare(world.config(), {}, root)


@cache
def built_once() -> tuple[PrepareConfig, TaskSet]:
    _, config, task_set = build(own_directory.make("test"))
    return config, task_set


@pytest.fixture
def copied(tmp_path: Path) -> tuple[PrepareConfig, Path]:
    config, task_set = built_once()
    return config, Path(shutil.copytree(task_set.path, tmp_path / "tasks" / task_set.key))


def test_rows_are_read_by_purpose_in_the_order_of_the_selection() -> None:
    _, task_set = built_once()
    train, held_out = list(task_set.rows("train")), list(task_set.rows(Purpose.HELD_OUT))
    assert [row.index for row in train] == list(range(70))
    assert [row.task_id for row in held_out] == [f"fake/test/{index}" for index in range(5)]
    assert train[3].messages == (
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "Solve: train 3"},
    )
    assert (task_set.num_tasks("train"), task_set.num_tasks("held_out")) == (70, 5)


def test_nothing_of_a_tasks_own_description_reaches_the_set() -> None:
    _, task_set = built_once()
    raw = b"".join(file.read_bytes() for file in task_set.path.iterdir())
    assert b"CANARY" not in raw
    assert not any("CANARY" in repr(row) for row in task_set.rows())
    assert "spec" not in schema().names


@given(
    st.lists(
        st.builds(
            TaskRow,
            task_id=st.text(max_size=5),
            env=st.text(max_size=3),
            purpose=st.sampled_from(Purpose),
            split=st.text(max_size=3),
            index=st.integers(0, 2**40),
            task_hash=st.text(max_size=3),
            messages=st.lists(
                st.fixed_dictionaries({"role": st.text(max_size=3), "content": st.text(max_size=9)}), max_size=3
            ).map(tuple),
            tools=st.text(max_size=5),
            weight=st.floats(allow_nan=False),
        ),
        max_size=5,
    )
)
@settings(max_examples=50, deadline=None)
def test_rows_survive_the_table_byte_for_byte(rows: list[TaskRow]) -> None:
    directory = own_directory.make("test")
    digests = {write_rows(directory / name, rows) for name in ("one", "two")}
    assert len(digests) == 1
    assert list(read_rows(directory / "one")) == rows
    assert (directory / "one").read_bytes() == (directory / "two").read_bytes()
    shutil.rmtree(directory)


@given(data=st.data(), name=st.sampled_from(["tasks.parquet", "manifest.json"]))
@settings(max_examples=60, deadline=None)
@pytest.mark.reliability
@pytest.mark.scorecard(5)
def test_any_changed_byte_is_found(data: st.DataObject, name: str) -> None:
    _, task_set = built_once()
    root = own_directory.make("test")
    file = shutil.copytree(task_set.path, root / task_set.key) / name
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content[: data.draw(st.sampled_from([len(content), at]))])
    with pytest.raises(Broken):
        prove(file.parent)
    shutil.rmtree(root)


def test_a_whole_set_is_opened(copied: tuple[PrepareConfig, Path]) -> None:
    config, path = copied
    assert open_verified(path, config).manifest == read_manifest(path)
    assert open_verified(path).num_tasks("train") == 70


def refusal(path: Path, config: PrepareConfig | None) -> str:
    with pytest.raises(XpError) as caught:
        open_verified(path, config)
    assert caught.value.code is ExitCode.TASKS
    assert "xp prepare" in str(caught.value)
    return str(caught.value)


@pytest.mark.reliability
@pytest.mark.scorecard(11)
def test_a_set_of_another_spec_is_refused_by_the_field_that_differs(copied: tuple[PrepareConfig, Path]) -> None:
    config, path = copied
    member = replace(config.members["fake"], train=Selection(("train",), num_tasks=32))
    wanted = replace(config, members={"fake": member})
    assert "members.fake.train.num_tasks: null -> 32" in refusal(path, wanted)
    missing = path.with_name(request_key(wanted))
    assert f"the nearest one, {path.name}, differs in members.fake.train.num_tasks: null -> 32" in refusal(
        missing, wanted
    )


@pytest.mark.reliability
@pytest.mark.scorecard(11)
def test_a_set_that_is_missing_damaged_or_misnamed_is_refused(copied: tuple[PrepareConfig, Path]) -> None:
    config, path = copied
    assert "no task set" in refusal(path.with_name("nothing"), None)
    moved = path.rename(path.with_name("0123"))
    assert f"it is the set {path.name}, in a directory of another name" in refusal(moved, config)
    moved.rename(path)
    (path / "manifest.json").rename(path / "kept")
    assert "no manifest.json" in refusal(path, config)
    (path / "kept").rename(path / "manifest.json")
    (path / "tasks.parquet").unlink()
    assert "tasks.parquet is missing" in refusal(path, config)


@pytest.mark.reliability
@pytest.mark.scorecard(11)
def test_a_set_that_lacks_more_than_is_permitted_is_refused_as_partial(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path, splits={"train": 10, "test": 10}, failing=["train/3"])
    tolerant = world.config(allow_missing_fraction=0.1)
    task_set = prepare(tolerant, {}, tmp_path)
    assert open_verified(task_set.path, tolerant).num_tasks("train") == 9
    assert "is partial: 1 task missing (5.0%" in refusal(task_set.path, world.config())


def task(index: int, text: str = "Solve it.", role: str = "user") -> TaskRow:
    digest, message = f"{index:064x}", {"role": role, "content": text}
    return TaskRow(f"m/train/{index}", "m", Purpose.TRAIN, "train", index, digest, (message,), "[]", 1.0)


def test_equal_prompts_need_the_memory_of_one(tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    write_rows(file, (task(index, "x" * 1_000_000) for index in range(300)))
    assert file.stat().st_size < 100_000
    program = (
        "import re, sys\nfrom pathlib import Path\nimport pyarrow.parquet\nfrom xp.tasks.row import read_rows\n"
        "def peak(): return int(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = peak()\n"
        "assert sum(len(row.messages[0]['content']) for row in read_rows(Path(sys.argv[1]))) == 300_000_000\n"
        "print((peak() - before) // 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, file], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert int(done.stdout) < 100  # MB


def test_a_table_with_other_columns_is_damaged(tmp_path: Path) -> None:
    pq.write_table(pa.table({"task_id": ["a"]}), tmp_path / "table")
    with pytest.raises(XpError, match="its columns are not those of a task set"):
        list(read_rows(tmp_path / "table"))


def test_long_prompts_are_written_in_smaller_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xp.tasks.row.GROUP_CHARACTERS", 3000)
    rows = [task(index, f"{index}" + "x" * 1000) for index in range(10)]
    write_rows(tmp_path / "tasks.parquet", rows)
    assert pq.ParquetFile(tmp_path / "tasks.parquet").metadata.num_row_groups == 4
    assert list(read_rows(tmp_path / "tasks.parquet")) == rows


def test_the_first_task_is_read_without_the_last(tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    write_rows(file, map(task, range(3000)))
    content = bytearray(file.read_bytes())
    at = pq.ParquetFile(file).metadata.row_group(2).column(5).dictionary_page_offset
    content[at + 50 : at + 150] = bytes(100)
    file.write_bytes(content)
    assert next(read_rows(file)) == task(0)
    with pytest.raises(XpError, match="is damaged"):
        list(read_rows(file))


@pytest.mark.reliability
def test_changed_bytes_of_a_table_end_in_a_message(tmp_path: Path) -> None:
    file, chance = tmp_path / "tasks.parquet", random.Random(1)
    write_rows(file, map(task, range(50)))
    whole = file.read_bytes()
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 4))):
            content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        file.write_bytes(content[: chance.choice((len(whole), len(whole), chance.randrange(len(whole))))])
        with suppress(XpError):
            assert len(list(read_rows(file))) <= 50
