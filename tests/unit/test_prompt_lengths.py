"""The table of the prepare stage counts tokens of the model in hand, and says where there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_provider import FakeWorld
from tests.support.sections import run_spec
from tests.support.task_rows import row
from tests.support.tiny import tokenizer_and_model
from xp.episode.tokens import ChatTokens
from xp.tasks import prompt_lengths
from xp.tasks.config import Purpose, Reader
from xp.tasks.prepare import prepare
from xp.tasks.prompt_lengths import count_tokens
from xp.tasks.row import TaskRow
from xp.tasks.store import TaskSet


@pytest.fixture
def model(tmp_path: Path) -> str:
    tokenizer_and_model()[0].save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def true_lengths(task_set: TaskSet, model: str, purpose: Purpose) -> list[int]:
    from transformers import AutoTokenizer

    chat = ChatTokens(AutoTokenizer.from_pretrained(model))
    return [len(chat.prompt(row.messages, row.tools)) for row in task_set.rows(purpose)]


def test_the_table_tells_tokens_and_the_share_over_the_limit(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    world = FakeWorld(tmp_path, splits={"train": 30, "test": 9})
    first = prepare(world.config(), {}, tmp_path / "first")
    own = true_lengths(first, model, Purpose.TRAIN)
    limit = sorted(own)[len(own) // 2]
    capsys.readouterr()
    prepare(
        world.config(),
        {},
        tmp_path,
        reader=Reader(model, run_spec(training__max_prompt_tokens=limit)),
    )
    out = capsys.readouterr().out
    cells = next(text for text in out.splitlines() if "  train  " in text).split()
    share = sum(one > limit for one in own) / len(own)
    assert cells[-3:] == [f"{mean(own):.0f}", str(max(own)), f"{share:.1%}"]
    assert f"prompt tokens by the tokenizer of {model}; training leaves out" in out
    assert f"prompts over training.max_prompt_tokens={limit}" in out


def test_without_the_model_the_table_counts_characters_and_transformers_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld(tmp_path, splits={"train": 5, "test": 2})
    monkeypatch.setitem(sys.modules, "transformers", None)
    prepare(
        world.config(),
        {},
        tmp_path,
        reader=Reader("nobody/nothing", run_spec(training__max_prompt_tokens=100)),
    )
    out = capsys.readouterr().out
    assert "characters" in out
    assert (
        "the tokenizer of nobody/nothing is not on this machine: prompt tokens are counted when"
        in out
    )


def test_counts_are_stored_and_only_other_tasks_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = [SimpleNamespace(task_id=name) for name in "abc"]
    asked: list[str] = []

    def count(row: Any) -> int | None:
        asked.append(row.task_id)
        return {"a": 3, "b": None, "c": 5}[row.task_id]

    place = tmp_path / "set"
    assert prompt_lengths.count_tokens(place, rows[:2], "digest", count) == {"a": 3}
    assert prompt_lengths.count_tokens(place, rows, "digest", count) == {"a": 3, "c": 5}
    assert asked == ["a", "b", "b", "c"]
    file = tmp_path / "set.tokens/digest.json"
    assert prompt_lengths.read_counts(file) == {"a": 3, "c": 5}
    monkeypatch.setattr(
        prompt_lengths, "write_atomically", lambda *_: pytest.fail("nothing is new")
    )
    assert prompt_lengths.count_tokens(place, rows[:2], "digest", count) == {"a": 3}
    file.write_text(file.read_text().replace("{", ""))
    assert prompt_lengths.read_counts(file) == {}


def test_prompts_that_are_counted_are_neither_counted_nor_written_again(tmp_path: Path) -> None:
    def count(number: int | None) -> Mapping[str, int]:
        def length(_: TaskRow) -> int:
            assert number is not None
            return number

        return count_tokens(tmp_path / "store/set", [row([])], "tokenizer", length)

    assert count(7) == {"e/test/0": 7}
    (file,) = tmp_path.rglob("tokenizer.json")
    os.utime(file, (1, 1))
    assert count(None) == {"e/test/0": 7}
    assert file.stat().st_mtime == 1
