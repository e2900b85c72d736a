"""A turn that a token limit cuts, in xp's loop for Slime; Slime's engine and sample are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contracts.test_agreement import ROW, FakeMix
from tests.fake_session import RULES, call
from tests.tiny import tokenizer_and_model
from xp.backends.slime.worker import rollout
from xp.backends.slime.worker.engine import EngineTurn
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.worker.token_budget import TokenBudget

WIN = call("win")


class Sample:
    """The fields of Slime's sample that the loop uses."""

    Status = SimpleNamespace(COMPLETED="completed", TRUNCATED="truncated", FAILED="failed")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.response_length = 0
        self.status, self.reward, self.remove_sample = "pending", None, False

    def append_response_tokens(self, args: Any, tokens: Sequence[int], **_: Any) -> None:
        del args
        self.tokens += tokens
        self.response_length += len(tokens)


def play(monkeypatch: pytest.MonkeyPatch, text: str, limit: int, sampling: Mapping[str, Any]) -> tuple[Sample, Any]:
    """An episode of one turn with this text and the token that ends it, up to the limit."""
    tokenizer, _ = tokenizer_and_model()

    async def write_turn(*given: Any, **_: Any) -> EngineTurn:
        max_tokens = given[3]
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id][:max_tokens]
        # SGLang's finish reason at the limit is "length" whatever the last token is.
        reason = "length" if len(ids) == max_tokens else "stop"
        return EngineTurn(ids, [0.0] * len(ids), "", {"finish_reason": {"type": reason}})

    monkeypatch.setattr(rollout, "write_turn", write_turn)
    monkeypatch.setattr(rollout, "_is_stopping", lambda _: False)
    sample, chat, episode = Sample(), ChatTokens(tokenizer), FakeMix(RULES).episode(ROW)
    common = SimpleNamespace(limits=TokenBudget(400, limit, 600))
    with ThreadPoolExecutor(1) as pool:
        own: Any = SimpleNamespace(
            config=SimpleNamespace(common=common),
            prompt=lambda chat, _: chat.prompt(ROW.messages, ROW.tools),
            num_lost=lambda: 0,
            pool=pool,
        )
        assert asyncio.run(rollout._converse(own, None, sample, sampling, episode, chat))
    outcome: EpisodeResult = episode.settle()
    rollout.close_sample(sample, outcome, chat.end_id, mask_truncated=True)
    return sample, outcome


CASES = {
    "a cut text": ("It was the bu|tler.", None, EpisodeStatus.TRUNCATED),
    "an end at the limit": ("It was the bu", None, EpisodeStatus.STOPPED),
    "a text that ends the turn at the limit": ("It was the bu|", ["bu"], EpisodeStatus.STOPPED),
    "a complete call": (f"{WIN}| and", None, EpisodeStatus.FINISHED),
}


@pytest.mark.parametrize("name", CASES)
def test_an_episode_that_ends_with_a_cut_turn_is_truncated_unless_a_complete_call_ended_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, stop, status = CASES[name]
    kept, mark, rest = text.partition("|")
    tokenizer, _ = tokenizer_and_model()
    limit = len(tokenizer(kept, add_special_tokens=False)["input_ids"]) + (not mark)
    sample, outcome = play(monkeypatch, kept + rest, limit, {"stop": stop})
    assert sample.response_length == limit
    assert outcome.status is status
    is_truncated = status is EpisodeStatus.TRUNCATED
    assert (sample.status, sample.remove_sample) == ("truncated" if is_truncated else "completed", is_truncated)
