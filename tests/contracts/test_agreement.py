"""One script, every way of driving an Episode: the same EpisodeResult, the same messages, the same loss mask.

TRL's adapter is held against the bare Episode here, the others' in tests/trainers.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import grouped
from tests.support.fake_session import RULES
from tests.support.scripts import (
    DRAWN,
    OVERLONG,
    ROW,
    SCRIPTS,
    DrawnMix,
    EpisodeFacts,
    FakeMix,
    Script,
    bare,
    check_drawn,
    check_penalty,
    dialogue,
    resettled,
    under_trls_engine,
)
from tests.support.sections import run_spec, sampling_of
from tests.support.tiny import ScriptedModel, tokenizer_and_model
from xp.episode.outcome import EpisodeStatus
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.worker.played import is_left_out


def rollout_of(
    script: Script, mix: Any, max_tokens_per_turn: int = 200, overlong: Overlong | None = None
) -> Any:
    """The script, played by TRL's adapter."""

    tokenizer, _ = tokenizer_and_model()
    model = ScriptedModel(_conversation(script), len(tokenizer))
    limits = (400, max_tokens_per_turn, 2000)
    sampling = sampling_of(*limits, temperature=0.0, stop=script.stop)
    (rollout,) = under_trls_engine(model, ChatTokens(tokenizer), mix, sampling, overlong=overlong)
    return rollout


def under_trl(script: Script) -> EpisodeFacts:
    tokenizer, _ = tokenizer_and_model()
    rollout = rollout_of(script, FakeMix(script.rules))
    assert resettled(rollout.record.trajectory("r", "train", 0), script) == rollout.outcome
    own = [
        token
        for token, mask in zip(
            rollout.conversation.completion_ids, rollout.conversation.mask, strict=True
        )
        if mask
    ]
    return EpisodeFacts(rollout.outcome, dialogue(rollout.record.episode), tokenizer.decode(own))


def _conversation(script: Script) -> list[int]:
    """All token ids of the script, with what the environment says in between."""

    tokenizer, _ = tokenizer_and_model()
    chat = ChatTokens(tokenizer)
    episode = FakeMix(script.rules).episode(ROW)
    ids = chat.prompt(ROW.messages, ROW.tools)
    for text in script.texts:
        is_cut = script.ends_by_itself(text)
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
        ids += [] if is_cut else [tokenizer.eos_token_id]
        reply = episode.step(text)
        if reply.is_done:
            # The text that it would go on to write.
            ids += tokenizer("more", add_special_tokens=False)["input_ids"]
            break
        last_id = ids[-1] if is_cut else chat.end_id
        ids += chat.reply(reply.messages, last_id=last_id)
    return ids


@pytest.mark.parametrize("script", SCRIPTS[:3], ids=lambda script: script.name)
def test_the_trained_episode_has_the_penalty_for_its_length(script: Script) -> None:
    rollout = rollout_of(script, FakeMix(script.rules), overlong=OVERLONG)
    if rollout.outcome.reward is not None:
        check_penalty(rollout.outcome, len(rollout.conversation.completion_ids), script)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_trls_adapter_agrees_with_the_bare_episode(script: Script) -> None:
    assert under_trl(script) == bare(script)


@pytest.mark.parametrize(
    "stop", [(), ("bu",)], ids=["no text ends a turn", "a text ends the turn at its limit"]
)
def test_a_turn_cut_by_trls_adapter_truncates_its_episode(stop: tuple[str, ...]) -> None:
    tokenizer, _ = tokenizer_and_model()
    limit = len(tokenizer("It was the bu", add_special_tokens=False)["input_ids"])
    script = Script("is cut", ("It was the bu",), stop=stop)
    rollout = rollout_of(script, FakeMix(RULES), limit)
    algorithm = run_spec(algorithm__mask_truncated=True).algorithm
    assert len(rollout.conversation.completion_ids) == limit
    assert rollout.outcome.status is (EpisodeStatus.STOPPED if stop else EpisodeStatus.TRUNCATED)
    assert is_left_out(rollout.outcome, algorithm) is not bool(stop)


@pytest.mark.parametrize("places", [4, 1])
def test_trls_engine_loss_and_record_have_the_live_prompt(places: int) -> None:
    tokenizer, model = tokenizer_and_model()
    chat = ChatTokens(tokenizer, keeps_prompts=True)
    mix = DrawnMix()
    rollouts = under_trls_engine(
        model, chat, mix, sampling_of(400, 8, 40), len(DRAWN), slots=places
    )
    trained = [any(rollout.conversation.mask) for rollout in rollouts]
    check_drawn(
        mix.episodes, chat, [rollout.conversation.prompt_ids for rollout in rollouts], trained
    )
    for rollout in rollouts:
        record = rollout.record.trajectory("r", "train", 0)
        assert list(record.messages[:1]) == list(rollout.record.episode.opening)
        if rollout.outcome.status is not EpisodeStatus.VOID:
            assert record.prompt == chat.rendered(record.messages[:1], ROW.tools)


@pytest.mark.parametrize(
    ("function", "places"), [("ranked", 4), ("ranked", 1), ("broken", 4), ("overtaken", 1)]
)
def test_a_groups_rewards_reach_trls_loss_and_record(function: str, places: int) -> None:
    tokenizer, _ = tokenizer_and_model()
    chat = ChatTokens(tokenizer)
    size = len(grouped.OWN)
    model: Any = ScriptedModel(_conversation(Script("wins", grouped.WINS)), len(tokenizer))
    sampling = sampling_of(400, 200, 2000, temperature=0.0)
    grouped.ALL_OPEN.clear()
    with grouped.mixture(function) as mix:
        rollouts = under_trls_engine(
            model, chat, mix, sampling, size, 2, slots=places, group_size=size
        )
    if function == "overtaken":
        assert {rollout.outcome.reward for rollout in rollouts} == {None, 3.0}
        return
    for group in (rollouts[:4], rollouts[4:]):
        outcomes = [rollout.outcome for rollout in group]
        assert outcomes == [rollout.record.trajectory("r", "train", 0).outcome for rollout in group]
        if function == "ranked":
            grouped.check_group(
                outcomes, [rollout.record.played().outcome.reward for rollout in group]
            )
        else:
            grouped.check_void_group(outcomes)
