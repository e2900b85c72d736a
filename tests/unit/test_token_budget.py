"""A reply that is far too long for its budget is not tokenized; all prompts are counted, and none is cut."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_with
from tests.support.fake_provider import FakeWorld
from tests.support.tiny import tokenizer_and_model
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.tasks.load import within_limit
from xp.tasks.prepare import prepare
from xp.tasks.prompt_lengths import directory_of
from xp.tasks.store import TaskSet
from xp.worker.token_budget import is_cut

ROOM = 420
LONG = 15 * 1024 * 1024


class Watched:
    """A tokenizer that notes how many characters it is given to tokenize."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, **how: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer(text, **how)


def tool(text: str) -> list[Message]:
    return [Message(role="tool", content=text)]


@pytest.mark.parametrize("pattern", ["x", "\N{BLACK HEART SUIT}<|im_end|>"])
def test_a_reply_of_15_mb_is_refused_without_its_tokens(pattern: str) -> None:
    watched = Watched(tokenizer_with("qwen3"))
    chat = ChatTokens(watched)
    reply = tool((pattern * (LONG // len(pattern) + 1))[:LONG])
    assert chat.reply_within(ROOM, tool("warm"), last_id=chat.end_id)
    tracemalloc.start()
    try:
        assert chat.reply_within(ROOM, reply, last_id=chat.end_id) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert watched.characters < LONG / 10, "what the tokenizer is given is bounded by the room"
    assert peak < 100e6


def test_whatever_fits_is_given_whole_and_nothing_else() -> None:
    chat = ChatTokens(tokenizer_with("qwen3"))
    draw = random.Random(0)
    words = ["where", " ", "42", "\n", "\N{GREEK SMALL LETTER PI}", "<think>", "aaaaaaaa"]
    for _ in range(80):
        text = "".join(draw.choices(words, k=draw.randint(0, 2_000)))
        messages = [*tool(text), *tool("and")]
        whole = chat.reply(messages, last_id=None)
        room = draw.choice(
            [
                0,
                1,
                len(whole),
                len(whole) + 1,
                draw.randint(1, 2_000),
                100_000,
            ]
        )
        expected = whole if len(whole) < room else None
        assert chat.reply_within(room, messages, last_id=None) == expected


def set_with_a_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskSet:
    def prompt(self: Any) -> list[Message]:
        times = 3_000 if self.task.index == 1 else 1
        return [Message(role="user", content=f"question {self.task.index} " * times)]

    monkeypatch.setattr("tests.support.fake_provider.FakeSession.prompt", prompt)
    world = FakeWorld(tmp_path, splits={"train": 6, "test": 2})
    return prepare(world.config(), {}, tmp_path)


def test_a_prompt_over_the_limit_is_counted_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    task_set = set_with_a_long_prompt(tmp_path, monkeypatch)
    chat = ChatTokens(tokenizer_and_model()[0])
    rows = list(task_set.rows())
    expected = {row.task_id: len(chat.prompt(row.messages, row.tools)) for row in rows}
    long = {task_id for task_id, number in expected.items() if number > 500}
    assert long
    for _ in range(2):  # The second time with what the first one kept.
        kept = within_limit(task_set.path, rows, chat, 500)
        assert {row.task_id for row in rows} - {row.task_id for row in kept} == long
        assert f"to {max(expected.values())} tokens" in capsys.readouterr().out
    (file,) = directory_of(task_set.path).iterdir()
    assert json.loads(file.read_bytes()) == expected


@pytest.mark.parametrize(
    ("ids", "is_limits"),
    [([7, 7, 7], True), ([7, 7, 2], False), ([7, 7, 5], False), ([7, 7], False)],
    ids=["at its limit", "an end at the limit", "a stop text at the limit", "shorter"],
)
def test_a_turn_is_cut_if_its_limit_ended_it(ids: list[int], is_limits: bool) -> None:
    assert (
        is_cut(
            ids,
            3,
            (1, 2),
            lambda own: own[-1] == 5,
        )
        is is_limits
    )
