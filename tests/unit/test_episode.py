"""The rules of an episode, against a session without a server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession, Sessions, call, steady
from tests.support.sections import replace, reward_rule
from xp.envs.base import ToolCrashed, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.episode.episode import NUDGE, Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.dialect import Dialect
from xp.spec.env import OnMalformedCall, OnNoToolCall, Reduction, ToolCallsPerTurn


def episode_of(session: FakeSession, rules: EnvConfig = RULES) -> Episode:
    return Episode(TASK, lambda: session, rules)


def test_the_environments_word_ends_the_episode_and_its_rewards_are_summed() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    reply = episode.step(call("move"))
    assert reply.messages == (
        {"role": "tool", "content": "moved after 0", "name": "move", "tool_call_id": "call00000"},
    )
    assert not reply.is_done
    assert episode.step(call("win")).status is EpisodeStatus.FINISHED
    outcome = episode.settle()
    assert (outcome.reward, outcome.step_rewards) == (1.5, (0.5, 1.0))
    assert (outcome.num_turns, outcome.num_tool_calls, outcome.num_malformed) == (2, 2, 0)
    assert session.num_closed == 1


def test_kimis_calls_are_answered_by_the_id_that_the_model_wrote() -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, dialect=Dialect.KIMI))
    written = [
        f"<|tool_call_begin|>functions.move:{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>" for n in (0, 1)
    ]
    ids = [message["tool_call_id"] for text in written for message in episode.step(text).messages]
    assert ids == ["functions.move:0", "functions.move:1"]


def test_a_final_reply_appends_nothing_but_is_remembered() -> None:
    episode = episode_of(FakeSession(steady))
    assert episode.step(call("win")).messages == ()
    assert episode.turns[0].messages == (
        {"role": "tool", "content": "won", "name": "win", "tool_call_id": "call00000"},
    )


def test_the_session_is_closed_with_the_last_turn() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("win"))
    assert session.num_closed == 1
    episode.settle()
    assert session.num_closed == 1


LOOKS_LIKE_A_CALL = [
    (Dialect.PYTHONIC, r"\[ f(2) = 4 \] so \boxed{4}"),
    (Dialect.PYTHONIC, "[f(2), f(3)] is [4, 9]"),
    (Dialect.LLAMA_JSON, '{"name": "Ada", "parameters": 3}'),
    (Dialect.LLAMA_JSON, 'It is {"name": "Ada"}.'),
    (Dialect.HERMES, '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
    (Dialect.HERMES, "42</tool_call>"),
    (Dialect.QWEN_XML, "<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>"),
    (Dialect.GLM, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"),
    (Dialect.ACTION, "<action>42</action>"),
]


class NoTools(FakeSession):
    """Takes answers only."""

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()


@pytest.mark.parametrize(("dialect", "text"), LOOKS_LIKE_A_CALL)
def test_without_tools_a_text_like_a_call_is_the_answer(dialect: Dialect, text: str) -> None:
    session = NoTools(steady, lambda _: ToolResult("right", 1.0, finished=True))
    episode = episode_of(session, replace(RULES, dialect=dialect))
    episode.step(f"<think>Hm.</think>{text}")
    assert session.answers == [text]
    assert episode.settle().reward == 1.0


def test_with_tools_a_call_is_a_call_although_answers_are_taken() -> None:
    session = FakeSession(steady, lambda _: ToolResult("right", 1.0, finished=True))
    episode_of(session).step(call("move"))
    assert (session.answers, session.calls) == ([], [("move", {})])


def test_settling_twice_scores_and_closes_once() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("move"))
    assert episode.settle() is episode.settle()
    assert session.num_closed == 1


def test_an_episode_that_never_took_a_step_opens_no_session() -> None:
    sessions = Sessions()
    outcome = Episode(TASK, sessions, RULES).settle()
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
def test_a_terminal_tool_gets_the_plain_message_as_its_answer(rule: OnNoToolCall) -> None:
    session = FakeSession(steady, grade=lambda text: ToolResult("graded", float(text == "42"), True))
    episode = episode_of(session, replace(RULES, on_no_tool_call=rule))
    episode.step(call("look"))
    assert episode.step("<think>6 * 7</think>\n42").status is EpisodeStatus.FINISHED
    assert session.answers == ["42"]
    assert episode.settle().reward == 1.0


def test_an_answer_that_does_not_end_the_episode_stops_it() -> None:
    episode = episode_of(FakeSession(steady, grade=lambda _: ToolResult("noted", 0.75)))
    assert episode.step("maybe").status is EpisodeStatus.STOPPED
    assert episode.settle().reward == 0.75


def test_an_answer_with_a_lone_surrogate_can_still_be_sent() -> None:
    session = FakeSession(steady, grade=lambda _: ToolResult("graded", 0.0, True))
    episode_of(session).step("\ud800")
    assert session.answers == ["\ufffd"]


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


def test_a_refused_call_is_shown_and_the_episode_goes_on() -> None:
    reply = episode_of(FakeSession(steady)).step(call("unknown"))
    assert reply.messages[0]["content"] == "'unknown' is not a valid tool"


def test_an_unscored_episode_that_ran_is_worth_zero() -> None:
    episode = episode_of(FakeSession(steady))
    episode.step(call("look"))
    assert episode.settle().reward == 0.0


def test_the_nonterminal_reward_is_added_unless_the_environment_ended_it() -> None:
    rules = replace(RULES, reward=reward_rule(Reduction.LAST, nonterminal=-1.0))
    stopped, won = episode_of(FakeSession(steady), rules), episode_of(FakeSession(steady), rules)
    stopped.step(call("move"))
    won.step(call("win"))
    assert (stopped.settle().reward, won.settle().reward) == (-1.0, 1.0)


CUT_ENDS = {
    "plain text": ("I would say that", RULES),
    "a call that cannot be read": (
        '<tool_call>\n{"name": "win", "argu',
        replace(RULES, on_malformed_call=OnMalformedCall.STOP),
    ),
    "an action without its end": ("<action>", replace(RULES, dialect=Dialect.ACTION)),
    "a call without its end": (
        "<tool_call>\n<function=move>\n",
        replace(RULES, dialect=Dialect.QWEN_XML),
    ),
}


@pytest.mark.parametrize("name", CUT_ENDS)
def test_a_cut_last_turn_without_a_complete_call_truncates(name: str) -> None:
    text, rules = CUT_ENDS[name]
    for is_cut in (True, False):
        episode = episode_of(FakeSession(lambda *_: ToolResult("won", 1.0, finished=True)), rules)
        status = episode.step(text, is_cut=is_cut).status
        assert (status is EpisodeStatus.TRUNCATED) == is_cut
        assert episode.settle().status is status


@pytest.mark.parametrize("finished", [True, False])
def test_a_cut_answer_is_graded_and_its_episode_is_truncated(finished: bool) -> None:
    rules = replace(RULES, reward=reward_rule(Reduction.SUM, nonterminal=-1.0))
    outcomes = []
    for is_cut in (True, False):
        session = LeavingSession(lambda _: ToolResult("graded", 0.25, finished))
        episode = episode_of(session, rules)
        episode.step("It was the but", is_cut=is_cut)
        assert session.answers == ["It was the but"]
        assert session.num_left == (not finished)
        outcomes.append(episode.settle())
    cut, whole = outcomes
    assert cut == replace(whole, status=EpisodeStatus.TRUNCATED)
    assert whole.status is (EpisodeStatus.FINISHED if finished else EpisodeStatus.STOPPED)
    assert cut.reward == (0.25 if finished else 0.25 - 1.0 + 0.5)


class LeavingSession(FakeSession):
    """A session that takes an answer, and scores with 0.5 the state in which it is left."""

    def __init__(self, grade: Callable[[str], ToolResult]) -> None:
        super().__init__(steady, grade)
        self.num_left = 0

    def leave(self) -> ToolResult:
        self.num_left += 1
        return ToolResult("left", 0.5)


def test_a_state_is_scored_once_where_a_turn_was_played_and_nothing_has_ended_it() -> None:
    def fails(_: str) -> ToolResult:
        raise ToolCrashed("no grader")

    rules = replace(RULES, limits=replace(RULES.limits, retries_per_episode=0))
    untouched, void, won, left = (LeavingSession(fails) for _ in range(4))
    episodes = [episode_of(session, rules) for session in (untouched, void, won, left)]
    episodes[0].start()
    episodes[1].step("It was")
    episodes[2].step(call("win"))
    episodes[3].step(call("move"))
    rewards = [episode.settle().reward for episode in episodes]
    assert [session.num_left for session in (untouched, void, won, left)] == [0, 0, 0, 1]
    assert rewards[1:3] == [None, 1.0]
    took = [episode.elapsed_s for episode in episodes]
    assert all(0 < one < 60 for one in took)
    assert episodes[3].settle().reward == rewards[3]
    assert episodes[3].elapsed_s == took[3]
    assert left.num_left == 1


@pytest.mark.parametrize("rule", ToolCallsPerTurn)
def test_a_complete_final_call_in_a_cut_turn_finishes_the_episode(rule: ToolCallsPerTurn) -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, tool_calls_per_turn=rule))
    text = f"{call('win')}\n<tool_call>\n{{"
    assert episode.step(text, is_cut=True).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.0


def test_after_a_cut_turn_the_last_turn_decides() -> None:
    rules = replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE)
    episode = episode_of(FakeSession(steady), rules)
    assert episode.step("hm", is_cut=True).messages == ({"role": "user", "content": NUDGE},)
    assert "Error: " in episode.step('<tool_call>\n{"na', is_cut=True).messages[0]["content"]
    assert episode.step(call("move"), is_cut=True).messages == (
        {"role": "tool", "content": "moved after 0", "name": "move", "tool_call_id": "call00001"},
    )
    assert episode.step(call("win")).status is EpisodeStatus.FINISHED


def test_an_episode_whose_environment_fails_in_a_cut_turn_is_void() -> None:
    def fails(_: str) -> ToolResult:
        raise ToolCrashed("no grader")

    episode = episode_of(
        FakeSession(steady, fails), replace(RULES, limits=replace(RULES.limits, retries_per_episode=0))
    )
    assert episode.step("It was", is_cut=True).status is EpisodeStatus.VOID
    assert episode.settle().reward is None
