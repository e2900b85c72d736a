"""The penalty for length, and token counts for reward functions: settled once, for the training's episodes alone."""

from __future__ import annotations

import json

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession, call
from tests.support.sections import overlong, replace
from tools.pages import REFERENCE
from xp.composition import compose
from xp.envs.base import Message, ToolResult
from xp.episode.episode import Episode
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.outcome import EpisodeResult, EpisodeStatus, Tokens
from xp.episode.rewards import Overlong, RewardSteps
from xp.episode.shaping import Shape, load_shape
from xp.episode.trajectory import trajectory
from xp.results.replay.rescore import _recorded

DAPO = overlong(20_480, 4_096, 1.0)
OPENING = (Message(role="user", content="play"),)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(16_384, 0.0), (16_385, -1 / 4_096), (20_480, -1.0), (30_000, -1.0)],
)
def test_it_is_the_papers_formula(length: int, penalty: float) -> None:
    assert DAPO.penalty(length) == penalty
    assert overlong(20_480, 4_096, 0.5).penalty(length) == penalty / 2


def by_tokens(tokens: Tokens | None) -> float:
    return 0.0 if tokens is None else float(tokens.generated)


def played(overlong: Overlong | None, tokens: Tokens | None, *shapes: Shape) -> Episode:
    won = ToolResult("won", 1.0, finished=True)
    episode = Episode(
        TASK,
        lambda: FakeSession(lambda _name, _done: won),
        RULES,
        RewardSteps(RULES.reward, shapes),
        OPENING,
    )
    episode.count_by(lambda: tokens, overlong)
    episode.step(call("win"))
    return episode


def test_the_record_has_both_rewards_and_a_held_out_episode_one() -> None:
    episode = played(DAPO, Tokens(100, 10_432, 8_000))
    train = episode.settle()
    assert (train.reward, train.unpenalized, train.task_reward) == (0.5, 1.0, 1.0)
    held_out = played(None, Tokens(100, 10_432, 8_000)).settle()
    assert (held_out.reward, held_out.unpenalized, held_out.task_reward) == (1.0, None, 1.0)
    record = trajectory(
        episode,
        run="",
        phase="train",
        step=0,
        sample=0,
        tools="[]",
    )
    outcome = json.loads(record.to_line())["outcome"]
    assert [*outcome["reward_steps"].items()] == [("reduce", 1.0), ("length", 0.5)]
    assert _recorded(outcome).reward == 1.0, "a rule scores the task"


def test_the_groups_reward_comes_before_the_penalty() -> None:
    episode = played(DAPO, Tokens(100, 20_480, 0))
    assert episode.in_group().outcome.reward == 1.0
    episode.settle_in_group(replace(episode.in_group().outcome, reward=3.0))
    assert episode.settle().reward == 2.0
    assert episode.settle().unpenalized == 3.0


def test_a_reward_function_gets_the_counts() -> None:
    shape = load_shape("tests.unit.test_overlong:by_tokens")
    assert played(None, Tokens(100, 7, 3), shape).settle().reward == 7.0
    assert played(None, None, shape).settle().reward == 0.0


def test_a_pass_is_of_the_task_and_the_mean_of_the_update() -> None:
    outcomes = [
        EpisodeResult(
            EpisodeStatus.FINISHED,
            0.25,
            (1.0,),
            1,
            1,
            0,
            unpenalized=1.0,
        )
    ]
    outcomes += [
        EpisodeResult(
            EpisodeStatus.FINISHED,
            0.0,
            (0.0,),
            1,
            1,
            0,
            unpenalized=0.0,
        )
    ]
    metrics = episode_metrics([EpisodeFacts("e", "t", outcome, 3) for outcome in outcomes], 2, 1.0)
    assert metrics["reward/avg_pass_at_2"] == 1.0
    assert metrics["reward/avg_raw_reward"] == 0.125
    assert metrics["reward/overlong_penalty"] == -0.375


def test_the_training_has_the_rule() -> None:
    spec = compose([*REFERENCE, "algorithm.overlong={buffer_tokens: 512, factor: 0.5}"])
    assert Overlong.of(spec) == overlong(spec.training.max_response_tokens, 512, 0.5)
