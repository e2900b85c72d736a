"""The engine is the model: what it says a token's probability was, one full forward says too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.tiny import tokenizer_and_model
from xp.backends.trl.worker.config import TRLSampling
from xp.backends.trl.worker.engine import TransformersEngine, _truncate

SAMPLING = TRLSampling(1.0, 1.0, None, 400, max_tokens_per_turn=12, max_response_tokens=60, seed=1)


def full_forward(model: object, ids: list[int], temperature: float) -> torch.Tensor:
    """Log-probability of every token but the first, from one forward without any cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :-1].float() / temperature  # type: ignore[operator]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def prompts(count: int) -> list[list[int]]:
    """Some begin alike, some are equal, their lengths differ."""
    generator = torch.Generator().manual_seed(3)
    common = torch.randint(10, 600, (7,), generator=generator).tolist()
    tails = [torch.randint(10, 600, (1 + number % 5,), generator=generator).tolist() for number in range(count)]
    return [[*common, *tails[number // 2]] for number in range(count)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_over_turns_are_those_of_one_full_forward(temperature: float) -> None:
    tokenizer, model = tokenizer_and_model()
    sampling = replace(SAMPLING, temperature=temperature)
    engine = TransformersEngine(model, prompts(6), [tokenizer.eos_token_id], sampling, torch.Generator().manual_seed(1))
    for turn in range(3):
        written = engine.turn()
        # Every turn one conversation leaves and the others get replies of different lengths.
        engine.extend(
            {one.number: [11 + one.number] * (1 + one.number % 3) for one in written[:-1]} if turn < 2 else {}
        )
    assert engine.live == []
    for conversation in engine.conversations:
        ids = [*conversation.prompt_ids, *conversation.completion_ids]
        expected = full_forward(model, ids, temperature)[len(conversation.prompt_ids) - 1 :]
        own = torch.tensor(conversation.mask, dtype=torch.bool)
        torch.testing.assert_close(torch.tensor(conversation.logprobs)[own], expected[own], atol=1e-4, rtol=0)


def test_a_mask_says_who_wrote_a_token() -> None:
    tokenizer, model = tokenizer_and_model()
    engine = TransformersEngine(model, prompts(2), [tokenizer.eos_token_id], SAMPLING, torch.Generator().manual_seed(1))
    first = {turn.number: turn.ids for turn in engine.turn()}
    engine.extend({0: [20, 21, 22]})
    second = engine.turn()
    assert [turn.number for turn in second] == [0]
    conversation = engine.conversations[0]
    assert conversation.completion_ids == [*first[0], 20, 21, 22, *second[0].ids]
    assert conversation.mask == [1] * len(first[0]) + [0, 0, 0] + [1] * len(second[0].ids)
    assert engine.conversations[1].completion_ids == first[1]


def test_limits_of_a_turn_and_of_the_whole_hold() -> None:
    tokenizer, model = tokenizer_and_model()
    sampling = replace(SAMPLING, max_tokens_per_turn=5, max_response_tokens=8)
    never = [-1]  # a token that ends no turn
    engine = TransformersEngine(model, prompts(2), never, sampling, torch.Generator().manual_seed(1))
    assert [(len(turn.ids), turn.is_cut) for turn in engine.turn()] == [(5, True), (5, True)]
    engine.extend({0: [20], 1: [20]})
    assert [len(turn.ids) for turn in engine.turn()] == [2, 2]
    assert [engine.room(number) for number in (0, 1)] == [0, 0]
    assert tokenizer.eos_token_id >= 0


def test_the_same_seed_writes_the_same_and_greedy_needs_none() -> None:
    tokenizer, model = tokenizer_and_model()

    def play(sampling: TRLSampling, seed: int) -> list[list[int]]:
        engine = TransformersEngine(
            model, prompts(4), [tokenizer.eos_token_id], sampling, torch.Generator().manual_seed(seed)
        )
        engine.turn()
        return [conversation.completion_ids for conversation in engine.conversations]

    assert play(SAMPLING, 1) == play(SAMPLING, 1) != play(SAMPLING, 2)
    greedy = replace(SAMPLING, temperature=0.0)
    assert play(greedy, 1) == play(greedy, 2)


def test_the_nucleus_and_the_top_k_keep_what_they_should() -> None:
    logprobs = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert _truncate(logprobs, 2, 1.0).isfinite().tolist() == [[True, True, False, False]]
    assert _truncate(logprobs, None, 0.6).isfinite().tolist() == [[True, True, False, False]]
    assert _truncate(logprobs, None, 0.5).isfinite().tolist() == [[True, False, False, False]]
    assert _truncate(logprobs, None, 1.0).isfinite().all()
