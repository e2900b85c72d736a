"""Rows of a program that rewrites its history: each token of a delivered turn is trained once, in its own context."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_of
from tests.support.harness_programs import harness, place
from tests.support.sections import sampling_of
from xp.envs.base import Message, Task
from xp.envs.config import load_provider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.tasks.config import Purpose
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import (
    Done,
    GeneratedTurn,
    GenerationRequest,
    Opening,
    RequestEngine,
)
from xp.worker.engines.play import EpisodePlay, Rollout

__all__ = ["place"]
pytestmark = pytest.mark.integration
TEMPLATES = ("qwen3", "qwen3_5_think", "llama3_2", "gemma3")
WIRES = ("chat", "responses", "anthropic")
NUM_DELIVERED = 9
"""Seven turns, and two of the sub-agent."""


class Recording(RequestEngine):
    """Answers each request with another text; a token's log-probability names its request and its position.

    The request that the program leaves is answered when it has left, since a server cannot know of it earlier.
    """

    def __init__(
        self, opening: Opening, chat: ChatTokens, texts: Sequence[str], left: Path
    ) -> None:
        super().__init__(opening, chat.end_ids, sampling_of(2000, 200, 4000), "seed")
        self.requests: list[GenerationRequest] = []
        self._chat = chat
        self._texts = texts
        self._left = left

    def submit(self, request: GenerationRequest, done: Done) -> None:
        number = len(self.requests)
        self.requests.append(request)
        ids = self._chat.turn(
            self._texts[number % len(self._texts)].format(number, number), is_call=False
        )
        turn = GeneratedTurn(ids, [-(1000.0 * number + position) for position in range(len(ids))])
        if "Never mind." in self._chat.text(request.ids):
            Thread(target=self._after_it_left, args=[done, turn]).start()
        else:
            done(turn)

    def _after_it_left(self, done: Done, turn: GeneratedTurn) -> None:
        while not self._left.exists():
            time.sleep(0.01)
        done(turn)


def played(
    tmp_path: Path, template: str, wire: str, texts: Sequence[str], **options: Any
) -> tuple[Rollout, Recording]:
    """An episode of the program, and the engine with the requests that it had."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Find it."}\n')
    left = tmp_path / "left"
    command = f"LEFT={left} python {{program}}/rewriting_agent.py {{prompt_file}} {wire}"
    program = {"command": command, "grade": "true", "max_rows": 8}
    config = harness(
        None,
        rows=str(rows),
        max_turns=40,
        options={**program, **options},
    )
    provider = load_provider(config, os.environ)
    chat = ChatTokens(tokenizer_of(template, tmp_path))
    task = Task("x", "train", 0)
    mix: Any = SimpleNamespace(
        episode=lambda _: Episode(task, lambda: provider.open(task), config),
        scores_groups=lambda _: False,
        max_sessions=lambda: 1,
    )
    engines: list[Recording] = []

    def opened(opening: Opening) -> Recording:
        engines.append(Recording(opening, chat, texts, left))
        return engines[0]

    opening = (Message(role="user", content="Find it."),)
    row = TaskRow(
        "x/train/0",
        "x",
        Purpose.TRAIN,
        "train",
        0,
        "h",
        opening,
        "[]",
        1.0,
    )
    try:
        (rollout,) = EpisodePlay(opened, chat, [(row, 0)], mix)
    finally:
        provider.close()
    return rollout, engines[0]


@pytest.mark.parametrize(
    ("template", "wire"),
    [*[(one, "chat") for one in TEMPLATES], *[("qwen3", wire) for wire in WIRES[1:]]],
)
def test_each_token_of_a_delivered_turn_is_trained_once_in_the_context_that_it_was_sampled_in(
    tmp_path: Path, template: str, wire: str
) -> None:
    rollout, engine = played(
        tmp_path, template, wire, ("I say {}.", "<think>\nSo {}.\n</think>\n\nThen {}.")
    )
    grader = rollout.outcome.grader
    assert rollout.outcome.status == EpisodeStatus.FINISHED
    assert rollout.outcome.reward == 1.0
    assert grader["program_retries"] == 1.0
    assert grader["program_undelivered"] == 1.0
    assert grader["program_failed"] == 0.0
    assert len(engine.requests) == NUM_DELIVERED + 1
    assert len({request.seed for request in engine.requests}) == len(engine.requests)
    trained: list[float] = []
    for row in rollout.conversations:
        whole = [*row.prompt_ids, *row.completion_ids]
        for at, (logprob, mask) in enumerate(
            zip(row.logprobs, row.mask, strict=True), start=len(row.prompt_ids)
        ):
            number, position = divmod(-int(logprob), 1000)
            if mask and not position:
                assert whole[:at] == list(engine.requests[number].ids)
            trained += [logprob] * mask
    assert len(set(trained)) == len(trained)
    turns = {-int(one) // 1000 for one in trained}
    assert len(turns) == NUM_DELIVERED
    (left,) = set(range(len(engine.requests))) - turns
    assert rollout.record.episode.undelivered == (left,)
    # Three segments of the main dialogue, and the sub-agent.
    assert len(rollout.conversations) == grader["program_rows"] == 4
    assert rollout.record.played().num_tokens == len(trained)


def test_beyond_the_most_rows_the_episode_is_truncated_and_scored(tmp_path: Path) -> None:
    rollout, _ = played(tmp_path, "qwen3", "chat", ("I say {}.",), max_rows=2)
    assert rollout.outcome.status == EpisodeStatus.TRUNCATED
    assert rollout.outcome.reward == 1.0
    assert len(rollout.conversations) == 2


def test_of_an_episode_whose_engine_fails_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = OSError("the engine is gone")
    monkeypatch.setattr(Recording, "submit", lambda *args: args[-1](gone))
    with pytest.raises(OSError, match="the engine is gone"):
        played(tmp_path, "qwen3", "chat", ("I say {}.",))
