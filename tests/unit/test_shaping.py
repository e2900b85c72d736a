"""A user's own reward is applied once, to what was scored, and its faults stop the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_session import RULES, TASK, FakeSession, call
from xp.envs.base import EnvUnavailable, ToolResult
from xp.episode.episode import Episode
from xp.episode.outcome import Outcome, Status
from xp.episode.shaping import load_shape
from xp.errors import ExitCode, XpError


def minus_turns(outcome: Outcome) -> float:
    assert outcome.reward is not None
    return outcome.reward - 0.1 * outcome.num_turns


def episode(shape: Any, result: ToolResult | Exception) -> Episode:
    return Episode(TASK, lambda: FakeSession(lambda _name, _done: result), RULES, shape)


def test_the_function_sees_the_settled_outcome() -> None:
    one = episode(minus_turns, ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    assert one.settle().reward == pytest.approx(0.9)
    assert one.settle().step_rewards == (1.0,)


def test_a_void_episode_is_not_shaped() -> None:
    def never(_: Outcome) -> float:
        raise AssertionError("a void episode has no reward to shape")

    one = episode(never, EnvUnavailable("down"))
    one.step(call("win"))
    assert (one.settle().status, one.settle().reward) == (Status.VOID, None)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), "1.0", True, None])
def test_what_is_no_finite_number_stops_the_run(given: Any) -> None:
    one = episode(lambda _: given, ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    with pytest.raises(XpError, match="finite number") as caught:
        one.settle()
    assert caught.value.code is ExitCode.STAGE_FAILED


def test_a_function_that_raises_is_named_with_its_reason() -> None:
    one = episode(lambda _: 1 / 0, ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    with pytest.raises(XpError, match="ZeroDivisionError"):
        one.settle()


def test_a_function_is_found_by_its_name_or_refused() -> None:
    assert load_shape("tests.unit.test_shaping:minus_turns").__name__ == "minus_turns"
    for name in ("tests.unit.test_shaping:absent", "no_such_module_of_mine:f"):
        with pytest.raises(XpError, match=name):
            load_shape(name)
