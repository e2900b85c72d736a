"""Checks that xp's engine, and TRL's log-probabilities, are those of a model's own forward pass."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.architectures import VOCABULARY
from tests.support.sections import sampling_of
from xp.worker.engines.conversation import Opening
from xp.worker.engines.kv_cache import without_padding_mask
from xp.worker.engines.transformers_engine import check_decoding

SAMPLING = sampling_of(64, 12, 64, temperature=0.7)


def trl_gap(model: Any) -> float:
    """Largest difference between TRL's log-probabilities of padded episodes and the model's own; the model gets TRL's
    head."""
    from trl.trainer.utils import add_fused_lm_head

    lengths = (24, 15, 20)
    ids = torch.randint(
        10,
        VOCABULARY - 10,
        (3, 24),
        generator=torch.Generator().manual_seed(5),
    )
    mask = (torch.arange(24) < torch.tensor(lengths)[:, None]).long()
    own = [
        log_probabilities(model, row[:length].tolist())
        for row, length in zip(ids, lengths, strict=True)
    ]
    add_fused_lm_head(model, temperature=SAMPLING.temperature)
    labels = ids.masked_fill(mask == 0, -100)
    with torch.inference_mode(), without_padding_mask(model, model.config, mask):
        trained = model(
            input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True
        ).log_probs
    return max(
        float((row[: len(one)] - one).abs().max()) for row, one in zip(trained, own, strict=True)
    )


def log_probabilities(model: Any, ids: list[int]) -> torch.Tensor:
    """Of every token but the first, by the model's own forward pass."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].float()
    return (
        (logits / SAMPLING.temperature)
        .log_softmax(-1)
        .gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    )


def check_two_turns(model: Any, tolerance: float = 1e-4) -> None:
    """Six conversations of three prompts, of which two get replies of different lengths; the longest has 40 tokens."""
    generator = torch.Generator().manual_seed(3)
    tails = [
        torch.randint(10, VOCABULARY - 10, (1 + 2 * number,), generator=generator).tolist()
        for number in range(3)
    ]
    prompts = [[11, 12, 13, 14, 15, 16, 17, *tails[number // 2]] for number in range(6)]
    opening = Opening(prompts, [f"task/{number}" for number in range(6)], 6, lambda _: None)
    engine = check_decoding(model)(model, opening, [-1], SAMPLING, "1")
    for number in range(6):
        engine.begin(number)
    while engine.is_generating:
        engine.step(True)
    for number in (1, 4):
        engine.continue_with(number, [20 + number] * number)
    while engine.is_generating:
        engine.step(True)
    assert max(len(one.prompt_ids) + len(one.completion_ids) for one in engine.conversations) == 40
    for one in engine.conversations:
        mask = torch.tensor(one.mask) > 0
        own = log_probabilities(model, [*one.prompt_ids, *one.completion_ids])[-len(mask) :]
        torch.testing.assert_close(
            torch.tensor(one.logprobs)[mask], own[mask], atol=tolerance, rtol=0
        )
