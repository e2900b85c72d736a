"""The agreement suite's scripts through SkyRL's own loop: it needs SkyRL's environment, the other drivers xp's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support import grouped
from tests.support.scripts import (
    ROW,
    SCRIPTS,
    STOP,
    EpisodeFacts,
    FakeMix,
    Script,
    bare,
    dialogue,
    resettled,
)
from tests.support.tiny import tokenizer_and_model
from tests.trainers.skyrl_parts import ScriptedClient, play, train_config
from xp.backends.skyrl.worker.generator import VOID
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens

ROOM = ("training.max_tokens_per_turn=200", "training.max_response_tokens=600")
ROOMY = {stop: train_config(*ROOM, f"training.stop={json.dumps(stop)}") for stop in ((), STOP)}


def under_skyrl(script: Script) -> EpisodeFacts:
    mix: Any = FakeMix(script.rules)
    batch = play(ScriptedClient(script.texts), mix, [ROW], ROOMY[script.stop])
    assert (
        resettled(batch.plays[0].trajectory("r", "train", 0), script)
        == batch.plays[0].episode.settle()
    )
    (ids,) = batch.output["response_ids"]
    (mask,) = batch.output["loss_masks"]
    trained = [token for token, is_trained in zip(ids, mask, strict=True) if is_trained]
    return EpisodeFacts(
        batch.plays[0].episode.settle(),
        dialogue(mix.episodes[0]),
        tokenizer_and_model()[0].decode(trained),
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_skyrls_loop_agrees_with_the_bare_episode(script: Script) -> None:
    expected = bare(script)
    found = under_skyrl(script)
    assert found.outcome == expected.outcome
    assert found.messages == expected.messages
    assert found.trained == (
        "" if expected.outcome.status is EpisodeStatus.VOID else expected.trained
    )


@pytest.mark.parametrize("keep", [True, False])
def test_a_trajectory_keeps_the_prompt_where_the_run_keeps_prompts(keep: bool) -> None:
    config = train_config(*ROOM, f"record_prompts={str(keep).lower()}")
    mix: Any = FakeMix(SCRIPTS[0].rules)
    (one,) = play(ScriptedClient(SCRIPTS[0].texts), mix, [ROW], config).plays
    rendered = ChatTokens(tokenizer_and_model()[0], config.spec.model).rendered(
        ROW.messages, ROW.tools
    )
    assert one.trajectory("r", "train", 0).prompt == (rendered if keep else None)


@pytest.mark.parametrize("function", ["ranked", "broken"])
def test_a_groups_rewards_reach_skyrls_samples(function: str) -> None:
    with grouped.mixture(function) as mix:
        batch = play(
            ScriptedClient(grouped.WINS), mix, [ROW], ROOMY[()], group_size=len(grouped.OWN)
        )
    outcomes = [one.episode.settle() for one in batch.plays]
    rewards = [one[-1] for one in batch.output["rewards"]]
    is_void = [reason == VOID for reason in batch.output["stop_reasons"]]
    assert (
        is_void
        == [one.reward is None for one in outcomes]
        == [not any(mask) for mask in batch.output["loss_masks"]]
    )
    if function == "ranked":
        grouped.check_group(
            outcomes, [None if void else one for one, void in zip(rewards, is_void, strict=True)]
        )
    else:
        grouped.check_void_group(outcomes)
        assert rewards == [0.0] * len(outcomes)


def test_the_episodes_of_a_held_out_task_are_a_group() -> None:
    from xp.backends.skyrl.worker.steps import ModelEvaluation

    whole: Any = SimpleNamespace(samples_per_task=len(grouped.OWN))
    with grouped.mixture("ranked") as mix:
        batch = play(
            ScriptedClient(grouped.WINS),
            mix,
            [ROW] * len(grouped.OWN),
            ROOMY[()],
        )
        assert {one.episode.settle().ungrouped for one in batch.plays} == {None}
        evaluation: Any = SimpleNamespace(_mix=mix, _whole=whole)
        ModelEvaluation.score_groups(evaluation, batch.plays)
    outcomes = [one.episode.settle() for one in batch.plays]
    grouped.check_group(outcomes, [one.reward for one in outcomes])


def test_other_groups_are_played_while_one_is_scored() -> None:
    grouped.ALL_OPEN.clear()
    rows = [ROW, replace(ROW, task_id="e/train/1", index=1)]
    with grouped.mixture("overtaken") as mix:
        batch = play(
            ScriptedClient(grouped.WINS), mix, rows, ROOMY[()], group_size=len(grouped.OWN)
        )
    assert sum(one.episode.settle().reward is None for one in batch.plays) == 2, "the two outages'"
