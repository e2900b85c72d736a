"""Two turns of conversations with pictures by xp's engine, and the same by the model's own processor and forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from xp.envs.base import Message
from xp.envs.pictures import digests_of
from xp.episode.picture_reader import PictureReader
from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.worker.engines.conversation import Conversation, Opening
from xp.worker.engines.transformers_engine import over_model

TOLERANCE: Final = 1e-5
SAMPLING: Final = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=None,
    min_p=0.0,
    repetition_penalty=1.0,
    stop=(),
    max_prompt_tokens=400,
    max_tokens_per_turn=4,
    max_response_tokens=400,
)


def play(
    network: Any, chat: ChatTokens, prompts: list[Message], replies: list[Message]
) -> list[Conversation]:
    """Two turns of each conversation with the engine."""
    delivered: list[Any] = []
    opening = Opening(
        [chat.prompt([prompt], "[]") for prompt in prompts],
        [str(number) for number in range(len(prompts))],
        len(prompts),
        delivered.append,
        [digests_of([prompt]) for prompt in prompts],
    )
    engine = over_model(network, chat, SAMPLING, "seed")(opening)
    two_turns(engine, chat, replies)
    assert len(delivered) == 2 * len(prompts)
    return engine.conversations


def two_turns(engine: Any, chat: ChatTokens, replies: Sequence[Message]) -> None:
    """Two turns of each conversation of an engine, with a reply between them."""
    for number in range(len(replies)):
        engine.begin(number)
    while engine.is_generating:
        engine.step(is_live=True)
    for number, reply in enumerate(replies):
        row = engine.conversations[number]
        tokens = chat.reply([reply], last_id=row.completion_ids[-1])
        row.pictures += digests_of([reply])
        engine.continue_with(number, tokens)
    while engine.is_generating:
        engine.step(is_live=True)


def check_rows(network: Any, chat: ChatTokens, rows: Sequence[Conversation]) -> None:
    """The engine's log-probabilities are the model's own, no token of a picture was sampled, and none is lost."""
    assert chat.pictures is not None
    for row in rows:
        is_policys = torch.tensor(row.mask) > 0
        gap = own_logprobs(network, chat, row) - torch.tensor(row.logprobs)
        assert gap[is_policys].abs().max() < TOLERANCE
        sampled = set(torch.tensor(row.completion_ids)[is_policys].tolist())
        assert not sampled & {*chat.pictures.form.special_ids}
        assert chat.pictures.fault([*row.prompt_ids, *row.completion_ids], row.pictures) is None


def own_inputs(
    network: Any, reader: PictureReader, ids: torch.Tensor, digests: Sequence[str]
) -> dict[str, Any]:
    """Inputs of the model's own forward pass on one conversation.

    The tensors are what transformers' processor makes of all its pictures together, with a text of placeholders alone;
    types of tokens are by the placeholder in config.json.

    Args:
        network: the model.
        reader: has the processor.
        ids: [1, tokens].
        digests: the conversation's pictures.
    """
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not digests:
        return inputs
    images = [reader.image(digest) for digest in digests]
    text = reader.processor.image_token * len(images)
    whole = reader.processor(images=[images], text=[text], return_tensors="pt")
    inputs |= {key: value for key, value in whole.items() if key not in inputs}
    for key in ("token_type_ids", "mm_token_type_ids"):
        if key in inputs:
            inputs[key] = (ids == network.config.image_token_id).long()
    return inputs


def own_logprobs(network: Any, chat: ChatTokens, row: Conversation) -> torch.Tensor:
    """Log-probabilities of the completion by the model's own forward pass alone."""
    assert chat.pictures is not None
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    inputs = own_inputs(network, chat.pictures, ids, row.pictures)
    with torch.inference_mode():
        logits = network(**inputs).logits[0, :-1].log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[-len(row.completion_ids) :, 0]
