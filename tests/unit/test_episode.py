"""The rules of an episode, against a session without a server."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace

import pytest

from tests.fake_session import RULES, TASK, FakeSession, Sessions, call, steady, with_limits
from xp.envs.base import ResponseLost, SessionLost, ToolResult, UnsafeOrigin
from xp.envs.config import EnvConfig, OnMalformedCall, OnNoToolCall, Reduction, RewardRule, ToolCallsPerTurn
from xp.episode.episode import NUDGE, Episode
from xp.episode.outcome import EpisodeStatus
from xp.episode.shaping import Shape


def episode_of(session: FakeSession, rules: EnvConfig = RULES) -> Episode:
    return Episode(TASK, lambda: session, rules)


def test_the_environments_word_ends_the_episode_and_its_rewards_are_summed() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    reply = episode.step(call("move"))
    assert reply.messages == ({"role": "tool", "content": "moved after 0"},)
    assert not reply.is_done
    assert episode.step(call("win")).status is EpisodeStatus.FINISHED
    outcome = episode.settle()
    assert (outcome.reward, outcome.step_rewards) == (1.5, (0.5, 1.0))
    assert (outcome.num_turns, outcome.num_tool_calls, outcome.num_malformed) == (2, 2, 0)
    assert session.num_closed == 1


def test_a_reply_that_ends_the_episode_holds_nothing_to_append_but_the_turn_remembers_it() -> None:
    episode = episode_of(FakeSession(steady))
    assert episode.step(call("win")).messages == ()
    assert episode.turns[0].messages == ({"role": "tool", "content": "won"},)


def test_the_session_is_closed_with_the_last_turn_and_not_only_when_the_trainer_settles() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("win"))
    assert session.num_closed == 1
    episode.settle()
    assert session.num_closed == 1


def test_settling_twice_scores_and_closes_once() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("move"))
    assert episode.settle() is episode.settle()
    assert session.num_closed == 1


def test_settling_an_ongoing_episode_means_that_it_was_truncated() -> None:
    episode = episode_of(FakeSession(steady))
    episode.step(call("move"))
    outcome = episode.settle()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.TRUNCATED, 0.5)


def test_an_episode_that_ended_by_itself_is_not_truncated_by_saying_so() -> None:
    episode = episode_of(FakeSession(steady))
    episode.step(call("win"))
    assert episode.settle(truncated=True).status is EpisodeStatus.FINISHED


def test_an_episode_that_never_took_a_step_opens_no_session() -> None:
    sessions = Sessions()
    outcome = Episode(TASK, sessions, RULES).settle(truncated=True)
    assert (outcome.status, outcome.reward, outcome.num_turns) == (EpisodeStatus.TRUNCATED, 0.0, 0)
    assert sessions.opened == []


def test_the_last_allowed_turn_without_an_end_is_truncated() -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, max_turns=2))
    assert episode.step(call("move")).status is EpisodeStatus.ONGOING
    assert episode.step(call("move")).status is EpisodeStatus.TRUNCATED
    assert episode.settle().reward == 1.0


def test_a_win_on_the_last_allowed_turn_is_a_win() -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, max_turns=1))
    assert episode.step(call("win")).status is EpisodeStatus.FINISHED


def test_a_step_after_the_end_does_nothing() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("win"))
    assert episode.step(call("move")).status is EpisodeStatus.FINISHED
    assert len(session.calls) == 1
    assert episode.settle().num_turns == 1


def test_a_turn_without_a_call_stops() -> None:
    episode = episode_of(FakeSession(steady))
    assert episode.step("I give up.").status is EpisodeStatus.STOPPED
    assert episode.settle().reward == 0.0


def test_a_turn_without_a_call_is_nudged_and_counts_as_a_turn() -> None:
    rules = replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE, max_turns=2)
    episode = episode_of(FakeSession(steady), rules)
    assert episode.step("hm").messages == ({"role": "user", "content": NUDGE},)
    assert episode.step("hm").status is EpisodeStatus.TRUNCATED


@pytest.mark.parametrize("rule", list(OnNoToolCall))
def test_an_environment_with_a_terminal_tool_gets_the_plain_message_as_its_answer(rule: OnNoToolCall) -> None:
    session = FakeSession(steady, grade=lambda text: ToolResult("graded", float(text == "42"), True))
    episode = episode_of(session, replace(RULES, on_no_tool_call=rule))
    episode.step(call("look"))
    assert episode.step("<think>6 * 7</think>\n42").status is EpisodeStatus.FINISHED
    assert session.answers == ["42"]
    assert episode.settle().reward == 1.0


def test_an_answer_that_does_not_end_the_episode_stops_it_and_its_reward_counts() -> None:
    episode = episode_of(FakeSession(steady, grade=lambda _: ToolResult("noted", 0.75)))
    assert episode.step("maybe").status is EpisodeStatus.STOPPED
    assert episode.settle().reward == 0.75


def test_an_answer_with_a_lone_surrogate_can_still_be_sent() -> None:
    session = FakeSession(steady, grade=lambda _: ToolResult("graded", 0.0, True))
    episode_of(session).step("\ud800")
    assert session.answers == ["?"]


def test_a_malformed_call_is_told_to_the_model() -> None:
    episode = episode_of(FakeSession(steady))
    (message,) = episode.step("<tool_call>{</tool_call>").messages
    assert message["role"] == "tool"
    assert message["content"].startswith("Error: the tool call is not valid JSON")
    assert episode.settle().num_malformed == 1


def test_a_malformed_call_stops_where_the_rules_say_so() -> None:
    rules = replace(RULES, on_malformed_call=OnMalformedCall.STOP)
    episode = episode_of(FakeSession(steady), rules)
    assert episode.step("<tool_call>{</tool_call>").status is EpisodeStatus.STOPPED
    assert (episode.settle().num_malformed, episode.settle().reward) == (1, 0.0)


def test_only_the_first_of_several_calls_is_executed() -> None:
    session = FakeSession(steady)
    reply = episode_of(session).step(call("look") + call("win"))
    assert [name for name, _ in session.calls] == ["look"]
    assert not reply.is_done


def test_all_calls_are_executed_in_order_up_to_the_end() -> None:
    session = FakeSession(steady)
    episode = episode_of(session, replace(RULES, tool_calls_per_turn=ToolCallsPerTurn.ALL))
    reply = episode.step(call("look") + "<tool_call>[]</tool_call>" + call("win") + call("move"))
    assert [name for name, _ in session.calls] == ["look", "win"]
    assert reply.status is EpisodeStatus.FINISHED
    assert [message["content"][:5] for message in episode.turns[0].messages] == ["a roo", "Error", "won"]


def test_a_call_that_the_environment_refuses_is_shown_and_the_episode_goes_on() -> None:
    reply = episode_of(FakeSession(steady)).step(call("unknown"))
    assert reply.messages[0]["content"] == "'unknown' is not a valid tool"


def test_an_unscored_episode_that_ran_is_worth_zero() -> None:
    episode = episode_of(FakeSession(steady))
    episode.step(call("look"))
    assert episode.settle().reward == 0.0


def test_the_nonterminal_reward_is_added_unless_the_environment_ended_it() -> None:
    rules = replace(RULES, reward=RewardRule(Reduction.LAST, -1.0, None, None, 1e6))
    stopped, won = episode_of(FakeSession(steady), rules), episode_of(FakeSession(steady), rules)
    stopped.step(call("move"))
    won.step(call("win"))
    assert (stopped.settle().reward, won.settle().reward) == (-1.0, 1.0)


@pytest.mark.parametrize("reward", [1e30, -1e30, 1e6 + 1, math.inf, -math.inf, math.nan])
def test_a_reward_beyond_the_bound_voids_with_the_reason_and_is_not_asked_for_again(reward: float) -> None:
    session = FakeSession(lambda name, done: ToolResult("paid", reward) if done else steady(name, done))
    episode = episode_of(session)
    episode.step(call("move"))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert (outcome.reward, outcome.step_rewards) == (None, (0.5,))
    reason = f"RewardOutOfBounds: the reward of move is {reward:g}; env.reward.bound is 1e+06"
    assert outcome.void_reason == reason
    assert len(session.calls) == 2


def test_a_sum_beyond_the_bound_voids_and_one_within_it_counts() -> None:
    rules = replace(RULES, reward=replace(RULES.reward, bound=1.0))
    one, two = episode_of(FakeSession(steady), rules), episode_of(FakeSession(steady), rules)
    for episode, moves in ((one, 2), (two, 3)):
        for _ in range(moves):
            episode.step(call("move"))
    assert one.settle().reward == 1.0
    assert (two.settle().status, two.settle().reward) == (EpisodeStatus.VOID, None)
    assert "the reward of the episode is 1.5" in (two.settle().void_reason or "")


def test_a_reward_function_beyond_the_bound_voids() -> None:
    huge = Shape("my_rewards:huge", lambda _: 1e30, None)
    episode = Episode(TASK, Sessions(FakeSession(steady)), RULES, [huge])
    episode.step(call("win"))
    assert (episode.settle().status, episode.settle().reward) == (EpisodeStatus.VOID, None)


def test_a_fault_without_retries_voids_and_never_scores() -> None:
    session = FakeSession(lambda name, done: ResponseLost("gone") if done else steady(name, done))
    episode = episode_of(session, with_limits(RULES, retries_per_episode=0))
    episode.step(call("move"))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert (outcome.reward, outcome.void_reason) == (None, "ResponseLost: gone")
    assert session.num_closed == 1
    assert len(session.calls) == 2


def test_a_lost_session_is_replaced_by_a_fresh_one_brought_to_the_same_state() -> None:
    broken = FakeSession(lambda name, done: SessionLost("restart") if done == 2 else steady(name, done))
    fresh = FakeSession(steady)
    episode = Episode(TASK, Sessions(broken, fresh), RULES)
    for name in ("move", "move", "move", "win"):
        reply = episode.step(call(name))
    assert reply.status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 2.5
    assert [name for name, _ in fresh.calls] == ["move", "move", "move", "win"]
    assert (broken.num_closed, fresh.num_closed) == (1, 1)


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


def test_retries_are_counted_over_the_whole_episode() -> None:
    sessions = Sessions(SessionLost("no"), FakeSession(lambda *_: SessionLost("again")), FakeSession(steady))
    episode = Episode(TASK, sessions, RULES)
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    assert len(sessions.script) == 1


def test_a_secret_that_would_leave_is_not_tried_again() -> None:
    sessions = Sessions(UnsafeOrigin("redirect"), FakeSession(steady))
    episode = Episode(TASK, sessions, RULES)
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    assert len(sessions.script) == 1


def test_a_fault_of_opening_is_held_until_it_is_asked_for() -> None:
    episode = Episode(TASK, Sessions(SessionLost("no"), SessionLost("no")), RULES)
    episode.start()
    assert episode.settle().status is EpisodeStatus.VOID


def test_a_session_opened_ahead_in_another_thread_is_the_one_that_is_used() -> None:
    session = FakeSession(steady)

    def slowly() -> FakeSession:
        time.sleep(0.05)
        return session

    episode = Episode(TASK, slowly, RULES)
    thread = threading.Thread(target=episode.start)
    thread.start()
    episode.step(call("win"))
    thread.join()
    assert episode.settle().reward == 1.0
    assert episode.open_s >= 0.05


def test_an_episode_over_its_time_is_void() -> None:
    episode = episode_of(FakeSession(steady), with_limits(RULES, episode_timeout_s=0.05))
    episode.step(call("move"))
    time.sleep(0.06)
    assert episode.step(call("win")).status is EpisodeStatus.VOID
    reason = episode.settle().void_reason
    assert reason is not None
    assert reason.startswith("DeadlineExceeded")


def test_an_exception_of_a_foreign_provider_voids_instead_of_reaching_the_trainer() -> None:
    episode = episode_of(FakeSession(lambda *_: KeyError("bug")), with_limits(RULES, retries_per_episode=0))
    assert episode.step(call("move")).status is EpisodeStatus.VOID
    assert episode.settle().void_reason == "EnvFault: the environment's client raised KeyError: 'bug'"


def test_rewards_whose_sum_overflows_are_void() -> None:
    episode = episode_of(FakeSession(lambda *_: ToolResult("", 1e308)))
    for _ in range(4):
        episode.step(call("move"))
    outcome = episode.settle()
    assert (outcome.status, outcome.reward) == (EpisodeStatus.VOID, None)
