"""A user's own reward is applied once, to what was scored, and an episode that it cannot score is void."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_session import RULES, TASK, FakeSession, call
from xp.envs.base import EnvUnavailable, Message, ToolResult
from xp.episode.episode import Episode
from xp.episode.metrics import Played, episode_metrics
from xp.episode.outcome import Outcome, Status
from xp.episode.shaping import Shape, load_shape, shaped
from xp.errors import XpError


def minus_turns(outcome: Outcome) -> float:
    assert outcome.reward is not None
    return outcome.reward - 0.1 * outcome.num_turns


def told(outcome: Outcome, env: str, messages: Any, tool_calls: Any) -> dict[str, float]:
    assert env == TASK.env
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[-1]["content"] == tool_calls[0]["result"].text == "won"
    return {"reward": outcome.reward or 0.0, "calls": len(tool_calls), "room": tool_calls[0]["arguments"]["room"]}


async def later(**about: Any) -> float:
    await asyncio.sleep(0)
    return float(about["index"])


def broken(outcome: Outcome, *, split: str = "") -> float:
    raise ZeroDivisionError(f"{outcome.reward} {split}")


def impossible(outcome: Outcome, weather: str) -> float:
    raise AssertionError(outcome, weather)


OPENING = (Message(role="user", content="play"),)


def episode(function: str, result: ToolResult | Exception) -> Episode:
    shape = load_shape(f"tests.unit.test_shaping:{function}")
    return Episode(TASK, lambda: FakeSession(lambda _name, _done: result), RULES, shape, OPENING)


def test_the_function_sees_the_settled_outcome() -> None:
    one = episode("minus_turns", ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    assert one.settle().reward == pytest.approx(0.9)
    assert one.settle().step_rewards == (1.0,)


def test_a_function_gets_what_its_parameters_name_and_its_other_entries_are_metrics() -> None:
    one = episode("told", ToolResult("won", 1.0, finished=True))
    one.step(call("win", room=4))
    outcome = one.settle()
    assert (outcome.reward, dict(outcome.metrics)) == (1.0, {"calls": 1.0, "room": 4.0})
    metrics = episode_metrics([Played("e", "t", outcome, 1)], 1, 1.0)
    assert (metrics["reward_fn/calls"], metrics["reward_fn/room"]) == (1.0, 4.0)


def test_a_function_may_be_asynchronous_also_where_an_event_loop_runs() -> None:
    one = episode("later", ToolResult("won", 1.0, finished=True))
    one.step(call("win"))

    async def settled() -> Outcome:
        return one.settle()

    assert asyncio.run(settled()).reward == float(TASK.index)


def test_a_void_episode_is_not_shaped() -> None:
    one = episode("broken", EnvUnavailable("down"))
    one.step(call("win"))
    assert one.settle().void_reason == "EnvUnavailable: down"


def test_a_function_that_raises_makes_the_episode_void_and_is_named() -> None:
    one = episode("broken", ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    outcome = one.settle()
    assert (outcome.status, outcome.reward) == (Status.VOID, None)
    assert outcome.void_reason == f"reward_fn tests.unit.test_shaping:broken: ZeroDivisionError: 1.0 {TASK.split}"


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "1.0", True, None, {}, {"reward": 1.0, "x": "y"}])
def test_what_is_no_finite_number_makes_the_episode_void(given: Any) -> None:
    outcome = Outcome(Status.FINISHED, 1.0, (1.0,), 1, 1, 0)
    found = shaped(outcome, Shape("a:b", lambda _: given, None), {})
    assert (found.status, found.reward) == (Status.VOID, None)
    assert "reward_fn a:b: ValueError: it gave" in (found.void_reason or "")


def test_a_parameter_that_nothing_fills_is_refused_when_the_function_is_loaded() -> None:
    with pytest.raises(XpError, match="wants weather; it may want outcome, env, split"):
        load_shape("tests.unit.test_shaping:impossible")


def test_a_function_is_found_by_its_name_or_refused() -> None:
    assert load_shape("tests.unit.test_shaping:minus_turns").call is minus_turns
    for name in ("tests.unit.test_shaping:absent", "no_such_module_of_mine:f"):
        with pytest.raises(XpError, match=name):
            load_shape(name)
