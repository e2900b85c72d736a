"""The Episode when rewards are out of bounds, sessions are lost or time runs out."""

from __future__ import annotations

import copy
import math
import re
import time

import pytest

from tests.support.fake_session import (
    RULES,
    TASK,
    FakeSession,
    Sessions,
    call,
    episode_of,
    steady,
    with_limits,
)
from tests.support.sections import replace
from tests.support.tiny import tokenizer_and_model
from xp.envs.base import EnvFault, Message, ResponseLost, SessionLost, ToolResult, UnsafeOrigin
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.tokens import ChatTokens
from xp.spec.env import MAX_REWARD, PromptSource
from xp.worker.played import live_prompt


def test_a_reward_of_the_state_that_was_left_is_bounded_too() -> None:
    session = FakeSession(steady)
    session.leave = lambda: ToolResult("left", math.nan)  # type: ignore[attr-defined]
    episode = episode_of(session)
    episode.step(call("move"))
    outcome = episode.settle()
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert outcome.void_reason is not None
    assert "the reward of the state that was left is" in outcome.void_reason


def test_an_answer_that_comes_after_the_time_is_not_scored() -> None:
    def late(_: str, __: int) -> ToolResult:
        time.sleep(0.06)
        return ToolResult("won", 1.0, True)

    episode = episode_of(FakeSession(late), with_limits(RULES, episode_timeout_s=0.05))
    assert episode.step(call("win")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert outcome.step_rewards == ()
    assert "the episode took longer than its 0.05 s (win was the last call)" in str(
        outcome.void_reason
    )


def test_a_finished_episode_keeps_its_reward_when_the_engine_is_lost() -> None:
    finished = episode_of(FakeSession(steady))
    finished.step(call("win"))
    finished.give_up("the engine is lost")
    assert finished.settle().reward == 1.0
    other = episode_of(FakeSession(steady))
    other.step(call("move"))
    other.give_up("the engine is lost")
    assert other.settle().reward is None
    assert other.settle().void_reason == "the engine is lost"


@pytest.mark.parametrize("reward", [1e30, math.inf, math.nan])
def test_a_reward_beyond_the_bound_voids_with_the_reason(reward: float) -> None:
    session = FakeSession(
        lambda name, done: ToolResult("paid", reward) if done else steady(name, done)
    )
    episode = episode_of(session)
    episode.step(call("move"))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert outcome.step_rewards == (0.5,)
    reason = f"RewardOutOfBounds: the reward of move is {reward:g}; at most 1e+06 counts"
    assert outcome.void_reason == reason
    assert len(session.calls) == 2


@pytest.mark.parametrize(
    ("each", "moves", "total", "reason"),
    [
        (MAX_REWARD / 2, 2, MAX_REWARD, "None"),
        (MAX_REWARD / 2, 3, None, "the reward of the episode is 1.5e+06"),
        (1e308, 4, None, "the reward of move is 1e+308"),
    ],
)
def test_a_sum_beyond_the_bound_voids_and_one_within_it_counts(
    each: float, moves: int, total: float | None, reason: str
) -> None:
    episode = episode_of(FakeSession(lambda *_: ToolResult("moved", each)))
    for _ in range(moves):
        episode.step(call("move"))
    outcome = episode.settle()
    assert (outcome.status is EpisodeStatus.VOID, outcome.reward) == (total is None, total)
    assert reason in str(outcome.void_reason)


def test_a_fault_without_retries_voids_and_never_scores() -> None:
    session = FakeSession(lambda name, done: ResponseLost("gone") if done else steady(name, done))
    episode = episode_of(session, with_limits(RULES, retries_per_episode=0))
    episode.step(call("move"))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert outcome.void_reason == "ResponseLost: gone"
    assert session.num_closed == 1
    assert len(session.calls) == 2


def test_a_lost_session_is_replaced_by_one_in_the_same_state() -> None:
    broken = FakeSession(
        lambda name, done: SessionLost("restart") if done == 2 else steady(name, done)
    )
    fresh = FakeSession(steady)
    episode = Episode(TASK, Sessions(broken, fresh), RULES)
    for name in ("move", "move", "move", "win"):
        reply = episode.step(call(name))
    assert reply.status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 2.5
    assert [name for name, _ in fresh.calls] == ["move", "move", "move", "win"]
    assert broken.num_closed == 1
    assert fresh.num_closed == 1


def test_a_fresh_session_that_answers_differently_voids() -> None:
    broken = FakeSession(lambda name, done: SessionLost("restart") if done else steady(name, done))
    other = FakeSession(lambda *_: ToolResult("another world", 0.5))
    episode = Episode(TASK, Sessions(broken, other), RULES)
    episode.step(call("move"))
    assert episode.step(call("win")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert outcome.void_reason is not None
    assert outcome.void_reason.startswith("Diverged")
    assert other.num_closed == 1


@pytest.mark.parametrize(
    "script",
    [
        # Retries are counted over the whole episode, and a secret that would leave is not tried again.
        (SessionLost("no"), FakeSession(lambda *_: SessionLost("again")), FakeSession(steady)),
        (UnsafeOrigin("redirect"), FakeSession(steady)),
    ],
)
def test_a_fault_without_a_further_try_voids(script: tuple[FakeSession | EnvFault, ...]) -> None:
    sessions = Sessions(*script)
    assert Episode(TASK, sessions, RULES).step(call("move")).status is EpisodeStatus.VOID
    assert len(sessions.script) == 1


def test_an_exception_of_a_foreign_provider_voids_instead_of_reaching_the_trainer() -> None:
    episode = episode_of(
        FakeSession(lambda *_: KeyError("bug")), with_limits(RULES, retries_per_episode=0)
    )
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    assert (
        episode.settle().void_reason == "EnvFault: the environment's client raised KeyError: 'bug'"
    )


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (ToolResult("ok", "1", finished=True), "the reward is '1', not a number or None"),  # type: ignore[arg-type]
        # type: ignore[arg-type]
        # type: ignore[arg-type]
        (ToolResult("ok", 1.0, finished="false"), "finished is 'false', not True or False"),  # type: ignore[arg-type]
    ],
)
def test_a_result_of_a_users_own_provider_that_is_no_number_voids(
    result: ToolResult, says: str
) -> None:
    episode = episode_of(FakeSession(lambda *_: result), with_limits(RULES, retries_per_episode=0))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    assert re.search(says, episode.settle().void_reason or "")


class Begins(FakeSession):
    """Begins with this text."""

    def __init__(self, text: str, lost_at: int | None = None) -> None:
        super().__init__(
            lambda name, done: SessionLost("restart") if done == lost_at else steady(name, done)
        )
        self._text = text

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=self._text)]


LIVE = replace(RULES, prompt=PromptSource.LIVE)
PREPARED = Begins("play").prompt()


def test_a_session_with_another_prompt_is_void_without_a_retry() -> None:
    sessions = Sessions(Begins("play on"), Begins("play"))
    episode = Episode(TASK, sessions, RULES, prepared=PREPARED)
    assert episode.step(call("win")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert str(outcome.void_reason).startswith(
        "PromptDiffers: the environment's prompt is not the prepared one: message 1, content:"
        " expected 'play', got 'play on'; set env.prompt=live"
    )
    assert [(one.calls, one.num_closed) for one in sessions.opened] == [([], 1)]
    assert list(episode.opening) == PREPARED


def test_a_lost_session_returns_with_the_prompt_the_model_read() -> None:
    for rules in (RULES, LIVE):
        same = Episode(
            TASK, Sessions(Begins("play", lost_at=1), Begins("play")), rules, prepared=PREPARED
        )
        other = Episode(
            TASK, Sessions(Begins("play", lost_at=1), Begins("think")), rules, prepared=PREPARED
        )
        for episode in (same, other):
            episode.step(call("move"))
            episode.step(call("win"))
        assert same.settle().reward == 1.5
        kind = (
            "PromptDiffers"
            if rules is RULES
            else "Diverged: a fresh session has another prompt than the one"
        )
        assert str(other.settle().void_reason).startswith(kind)


def test_a_live_prompt_that_cannot_be_rendered_makes_its_episode_void() -> None:
    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    session = Begins("think")
    episode = Episode(TASK, Sessions(session), LIVE, prepared=PREPARED)
    assert live_prompt(episode, "[]", ChatTokens(tokenizer), 99) is None
    outcome = episode.settle()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.VOID, None)
    assert str(outcome.void_reason).startswith("TemplateFault: the chat template does not render")
    assert session.num_closed == 1
