"""The engine is the model: its probabilities are those of one full forward, whoever writes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch

from tests.support.cases import few
from tests.support.sections import replace, sampling_of
from tests.support.tiny import tokenizer_and_model
from xp.spec import Sampling
from xp.worker.engines.conversation import (
    Conversation,
    Done,
    GeneratedTurn,
    GenerationRequest,
    Opening,
    RequestEngine,
    RolloutTurn,
)
from xp.worker.engines.transformers_engine import TransformersEngine

SAMPLING = sampling_of(400, 12, 60)


class Engine:
    """A TransformersEngine on the tiny model, and the turns that it has delivered."""

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling = SAMPLING,
        seed: str = "1",
        names: Sequence[str] | None = None,
        places: int | None = None,
        end_ids: Sequence[int] | None = None,
        **given: Any,
    ) -> None:
        tokenizer, model = tokenizer_and_model()
        self.delivered: list[Any] = []
        names = names or [f"task/{number}" for number in range(len(prompts))]
        opening = Opening(prompts, names, places or len(prompts), self.delivered.append)
        model, ends = given.pop("model", model), end_ids or [tokenizer.eos_token_id]
        self.own = TransformersEngine(
            model,
            opening,
            ends,
            sampling,
            seed,
            **given,
        )

    @property
    def conversations(self) -> Sequence[Conversation]:
        return self.own.conversations

    def begin(self, *numbers: int) -> None:
        for number in numbers:
            self.own.begin(number)

    def play(self) -> list[RolloutTurn]:
        """The first turn of every conversation."""
        self.begin(*range(len(self.conversations)))
        return self.run()

    def run(self) -> list[RolloutTurn]:
        """Run until no episode generates; returns the turns that ended, by number."""
        while self.own.is_generating:
            self.own.step(True)
        turns = sorted(self.delivered, key=lambda turn: turn.number)
        self.delivered[:] = []
        return turns


def full_forward(model: object, ids: list[int], temperature: float) -> torch.Tensor:
    """Log-probability of every token but the first, from one forward without any cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature  # type: ignore[operator]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def prompts(count: int) -> list[list[int]]:
    """Some begin alike, some are equal, their lengths differ."""
    generator = torch.Generator().manual_seed(3)
    common = torch.randint(10, 600, (7,), generator=generator).tolist()
    tails = [
        torch.randint(10, 600, (1 + number % 5,), generator=generator).tolist()
        for number in range(count)
    ]
    return [[*common, *tails[number // 2]] for number in range(count)]


def check_log_probabilities(engine: Engine, model: object, temperature: float) -> None:
    for conversation in engine.conversations:
        ids = [*conversation.prompt_ids, *conversation.completion_ids]
        expected = full_forward(model, ids, temperature)[len(conversation.prompt_ids) - 1 :]
        own = torch.tensor(conversation.mask, dtype=torch.bool)
        torch.testing.assert_close(
            torch.tensor(conversation.logprobs)[own], expected[own], atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("temperature", few([0.7, 1.0], 1))
def test_log_probabilities_over_turns_are_those_of_one_full_forward(temperature: float) -> None:
    """Replies come at different times, and more episodes are played than there are places."""
    engine = Engine(prompts(6), replace(SAMPLING, temperature=temperature), places=3)
    order = Random(5)
    waiting = [3, 4, 5]
    late = list[RolloutTurn]()
    engine.begin(0, 1, 2)
    for _ in range(400):
        if engine.own.is_generating:
            engine.own.step(True)
        late += engine.delivered
        engine.delivered.clear()
        while late and (order.random() < 0.3 or not engine.own.is_generating):
            turn = late.pop(order.randrange(len(late)))
            if engine.conversations[turn.number].num_turns < 3:
                engine.own.continue_with(turn.number, [11 + turn.number] * (1 + turn.number % 3))
                continue
            engine.own.end(turn.number)
            engine.begin(*waiting[:1])
            del waiting[:1]
    assert (engine.own.is_generating, late, waiting) == (False, [], [])
    assert [conversation.num_turns for conversation in engine.conversations] == [3] * 6
    for number, one in enumerate(engine.conversations):
        replies = [
            token for token, own in zip(one.completion_ids, one.mask, strict=True) if not own
        ]
        assert replies == [11 + number] * 2 * (1 + number % 3)
    check_log_probabilities(engine, tokenizer_and_model()[1], temperature)


def test_what_is_written_does_not_depend_on_who_writes_beside_it() -> None:
    together = Engine(prompts(6))
    together.play()
    for number in range(6):
        alone = Engine([prompts(6)[number]], names=[f"task/{number}"])
        alone.play()
        assert (
            alone.conversations[0].completion_ids == together.conversations[number].completion_ids
        )


def test_a_live_prompt_is_read_as_the_engines_first() -> None:
    """It may begin otherwise than all prompts of the opening, be shorter, or be one of them."""
    opened = prompts(8)
    sessions = [
        *opened[:2],
        opened[3][:4],
        [9, 8, 7],
        opened[3][:4],
        [5],
        opened[1],
        [*opened[0], 11],
    ]
    names = [f"task/{number}" for number in range(8)]
    expected = Engine(sessions, names=names)
    expected.play()
    for places in (8, 3):
        engine = Engine(opened, names=names, places=places)
        for first in range(0, 8, places):
            numbers = range(first, min(first + places, 8))
            for number in numbers:
                is_opened = sessions[number] == opened[number]
                engine.own.begin(number, None if is_opened else Conversation(sessions[number]))
            engine.run()
            for number in numbers:
                engine.own.end(number)
        for one, other in zip(engine.conversations, expected.conversations, strict=True):
            assert one.prompt_ids == other.prompt_ids
            assert one.completion_ids == other.completion_ids
        check_log_probabilities(engine, tokenizer_and_model()[1], 1.0)
        assert not engine.own._known


def test_limits_of_a_turn_and_of_the_whole_hold() -> None:
    sampling = replace(SAMPLING, max_tokens_per_turn=5, max_response_tokens=8)
    engine = Engine(prompts(2), sampling, end_ids=[-1])  # a token that ends no turn
    assert [(len(turn.ids), turn.is_cut) for turn in engine.play()] == [(5, True), (5, True)]
    for number in (0, 1):
        engine.own.continue_with(number, [20])
    assert [len(turn.ids) for turn in engine.run()] == [2, 2]
    assert [engine.own.room(number) for number in (0, 1)] == [0, 0]


class CutEngine(RequestEngine):
    """An engine that generates a given text up to the request's limit."""

    ids: Sequence[int]

    def submit(self, request: GenerationRequest, done: Done) -> None:
        ids = self.ids[: request.max_tokens]
        done(GeneratedTurn(ids, [0.0] * len(ids)))


@pytest.mark.parametrize(
    ("ids", "is_limits"),
    [([7] * 9, True), ([7] * 11 + [2], False), ([7] * 13, True)],
    ids=["of its response", "none, by an end there", "of a turn"],
)
def test_a_server_of_whole_turns_reports_a_turn_that_a_limit_cut(
    ids: list[int], is_limits: bool
) -> None:
    limit = len(ids) if ids == [7] * 9 else SAMPLING.max_tokens_per_turn
    turns: list[Any] = []
    opening = Opening(prompts(1), ["task/0"], 1, turns.append)
    sampling = replace(SAMPLING, max_response_tokens=limit)
    engine = CutEngine(
        opening,
        [1, 2],
        sampling,
        "1",
        lambda own: own[-1] == 5,
    )
    engine.ids = ids
    engine.begin(0)
    assert [turn.is_cut for turn in turns] == [is_limits]


def test_a_server_of_whole_turns_gets_the_sessions_own_prompt() -> None:
    class Asked(CutEngine):
        ids = (7, 2)

        def submit(self, request: GenerationRequest, done: Done) -> None:
            asked.append(request.ids)
            super().submit(request, done)

    asked: list[Sequence[int]] = []
    engine = Asked(
        Opening([[3], [4]], ["a", "b"], 2, lambda _: None),
        [2],
        SAMPLING,
        "1",
    )
    engine.begin(0, Conversation([5, 6]))
    engine.begin(1)
    engine.continue_with(0, [8])
    assert asked == [[5, 6], [4], [5, 6, 7, 2, 8]]
    assert engine.conversations[0].prompt_ids == [5, 6]


def test_a_text_that_ends_a_turn_ends_it_before_its_limit() -> None:
    engine = Engine(
        prompts(2),
        end_ids=[-1],
        is_stop=lambda ids: len(ids) == 3,
    )
    assert [(len(turn.ids), turn.is_cut) for turn in engine.play()] == [(3, False), (3, False)]
