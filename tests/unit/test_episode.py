"""The rules of an episode, against a session without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_session import (
    RULES,
    TASK,
    FakeSession,
    Sessions,
    TakingSession,
    call,
    episode_of,
    steady,
)
from tests.support.sections import replace, reward_rule
from xp.envs.base import Message, ToolCrashed, ToolResult, ToolSpec
from xp.episode.episode import NUDGE, Episode
from xp.episode.outcome import EpisodeStatus
from xp.spec.dialect import Dialect
from xp.spec.env import OnMalformedCall, OnNoToolCall, Reduction, ToolCallsPerTurn

MALFORMED = "<tool_call>{</tool_call>"
ALL = {"tool_calls_per_turn": ToolCallsPerTurn.ALL}
LAST = {"reward": reward_rule(Reduction.LAST, nonterminal=-1.0)}


@pytest.mark.parametrize(
    ("changes", "texts", "status", "reward", "calls"),
    [
        ({}, [call("move"), call("win")], EpisodeStatus.FINISHED, 1.5, "move win"),
        ({"max_turns": 2}, [call("move"), call("move")], EpisodeStatus.TRUNCATED, 1.0, "move move"),
        ({"max_turns": 1}, [call("win")], EpisodeStatus.FINISHED, 1.0, "win"),
        # A turn without a call, or with a malformed one.
        ({}, ["I give up."], EpisodeStatus.STOPPED, 0.0, ""),
        (
            {"on_no_tool_call": OnNoToolCall.NUDGE, "max_turns": 2},
            ["hm", "hm"],
            EpisodeStatus.TRUNCATED,
            0.0,
            "",
        ),
        ({"on_malformed_call": OnMalformedCall.STOP}, [MALFORMED], EpisodeStatus.STOPPED, 0.0, ""),
        ({}, [MALFORMED], EpisodeStatus.ONGOING, 0.0, ""),
        # Several calls in a turn.
        ({}, [call("look") + call("win")], EpisodeStatus.ONGOING, 0.0, "look"),
        (
            ALL,
            [call("look") + MALFORMED + call("win") + call("move")],
            EpisodeStatus.FINISHED,
            1.0,
            "look win",
        ),
        # The nonterminal reward is added unless the environment has ended it.
        (LAST, [call("move")], EpisodeStatus.ONGOING, -1.0, "move"),
        (LAST, [call("win")], EpisodeStatus.FINISHED, 1.0, "win"),
    ],
)
def test_texts_are_played_by_the_rules(
    changes: dict[str, Any], texts: list[str], status: EpisodeStatus, reward: float, calls: str
) -> None:
    session = FakeSession(steady)
    episode = episode_of(session, replace(RULES, **changes))
    assert [episode.step(text).status for text in texts][-1] is status
    assert session.num_closed == (status is not EpisodeStatus.ONGOING)
    outcome = episode.settle()
    assert episode.settle() is outcome
    assert outcome.reward == reward
    assert [name for name, _ in session.calls] == calls.split()
    assert (outcome.num_tool_calls, outcome.num_malformed) == (
        len(session.calls),
        "".join(texts).count(MALFORMED),
    )
    assert session.num_closed == 1


def test_a_step_after_the_end_does_nothing() -> None:
    session = FakeSession(steady)
    episode = episode_of(session)
    episode.step(call("win"))
    assert episode.step(call("move")).status is EpisodeStatus.FINISHED
    assert len(session.calls) == 1
    assert episode.settle().num_turns == 1


def result(text: str, name: str, number: int = 0) -> Message:
    return Message(role="tool", content=text, name=name, tool_call_id=f"call0000{number}")


@pytest.mark.parametrize(
    ("changes", "text", "messages"),
    [
        ({}, call("move"), [result("moved after 0", "move")]),
        ({}, call("unknown"), [result("'unknown' is not a valid tool", "unknown")]),
        ({"on_no_tool_call": OnNoToolCall.NUDGE}, "hm", [Message(role="user", content=NUDGE)]),
        (
            ALL,
            call("look") + call("move"),
            [result("a room", "look"), result("moved after 1", "move", 1)],
        ),
        # A final reply appends nothing, but is remembered.
        ({}, call("win"), [result("won", "win")]),
    ],
)
def test_the_model_is_told_the_results(
    changes: dict[str, Any], text: str, messages: list[Message]
) -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, **changes))
    reply = episode.step(text)
    assert [*episode.turns[0].messages] == messages
    assert [*reply.messages] == ([] if reply.is_done else messages)


def test_the_model_is_told_what_is_malformed() -> None:
    (message,) = episode_of(FakeSession(steady)).step(MALFORMED).messages
    assert message["role"] == "tool"
    assert message["content"].startswith("Error: the tool call is not valid JSON")


def test_kimis_calls_are_answered_by_the_id_that_the_model_wrote() -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, dialect=Dialect.KIMI))
    written = [
        f"<|tool_call_begin|>functions.move:{n}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for n in (0, 1)
    ]
    ids = [message["tool_call_id"] for text in written for message in episode.step(text).messages]
    assert ids == ["functions.move:0", "functions.move:1"]


LOOKS_LIKE_A_CALL = [
    (Dialect.PYTHONIC, r"\[ f(2) = 4 \] so \boxed{4}"),
    (Dialect.LLAMA_JSON, '{"name": "Ada", "parameters": 3}'),
    (
        Dialect.HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    ),
    (
        Dialect.GLM,
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
    ),
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
    assert session.answers == []
    assert session.calls == [("move", {})]


def test_an_episode_that_never_took_a_step_opens_no_session() -> None:
    sessions = Sessions()
    outcome = Episode(TASK, sessions, RULES).settle()
    assert outcome.status == EpisodeStatus.TRUNCATED
    assert outcome.reward == 0.0
    assert outcome.num_turns == 0
    assert sessions.opened == []


@pytest.mark.parametrize("rule", list(OnNoToolCall))
def test_a_terminal_tool_gets_the_plain_message_as_its_answer(rule: OnNoToolCall) -> None:
    session = FakeSession(
        steady, grade=lambda text: ToolResult("graded", float(text == "42"), True)
    )
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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "I would say that"),
        ({"on_malformed_call": OnMalformedCall.STOP}, '<tool_call>\n{"name": "win", "argu'),
        ({"dialect": Dialect.ACTION}, "<action>"),
        ({"dialect": Dialect.QWEN_XML}, "<tool_call>\n<function=move>\n"),
    ],
)
def test_a_cut_last_turn_without_a_complete_call_truncates(
    changes: dict[str, Any], text: str
) -> None:
    for is_cut in (True, False):
        session = FakeSession(lambda *_: ToolResult("won", 1.0, finished=True))
        episode = episode_of(session, replace(RULES, **changes))
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
    assert episodes[3].settle().reward == rewards[3]
    assert left.num_left == 1


@pytest.mark.parametrize("rule", ToolCallsPerTurn)
def test_a_complete_final_call_in_a_cut_turn_finishes_the_episode(rule: ToolCallsPerTurn) -> None:
    episode = episode_of(FakeSession(steady), replace(RULES, tool_calls_per_turn=rule))
    assert (
        episode.step(f"{call('win')}\n<tool_call>\n{{", is_cut=True).status
        is EpisodeStatus.FINISHED
    )
    assert episode.settle().reward == 1.0


def test_a_cut_message_whose_call_ended_the_episode_is_its_end() -> None:
    episode = episode_of(TakingSession(steady), RULES)
    assert episode.step(call("win"), is_cut=True).status is EpisodeStatus.FINISHED


def test_after_a_cut_turn_the_last_turn_decides() -> None:
    rules = replace(RULES, on_no_tool_call=OnNoToolCall.NUDGE)
    episode = episode_of(FakeSession(steady), rules)
    assert episode.step("hm", is_cut=True).messages == ({"role": "user", "content": NUDGE},)
    assert "Error: " in episode.step('<tool_call>\n{"na', is_cut=True).messages[0]["content"]
    assert episode.step(call("move"), is_cut=True).messages == (
        {"role": "tool", "content": "moved after 0", "name": "move", "tool_call_id": "call00001"},
    )
    assert episode.step(call("win")).status is EpisodeStatus.FINISHED
