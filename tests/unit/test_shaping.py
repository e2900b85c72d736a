"""A user's own reward is applied once, to what was scored, and an episode that it cannot score is void."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fake_session import RULES, TASK, FakeSession, call
from xp.composition import compose, from_container
from xp.envs.base import EnvUnavailable, Message, ToolResult
from xp.episode.episode import Episode
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.rewards import RewardSteps
from xp.episode.shaping import RewardFnFault, Shape, load_shape, shaped_reward
from xp.errors import XpError
from xp.planning.episode import episode_config, user_modules
from xp.spec.reward_fn import WeightedFnSpec


def minus_turns(outcome: EpisodeResult) -> float:
    assert outcome.reward is not None
    return outcome.reward - 0.1 * outcome.num_turns


def told(outcome: EpisodeResult, env: str, messages: Any, tool_calls: Any) -> dict[str, float]:
    assert env == TASK.env
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[-1]["content"] == tool_calls[0]["result"].text == "won"
    return {
        "reward": outcome.reward or 0.0,
        "calls": len(tool_calls),
        "room": tool_calls[0]["arguments"]["room"],
    }


def halved(the_result: EpisodeResult) -> float:
    return (the_result.reward or 0.0) / 2


def placed(**about: Any) -> float:
    return float(about["index"])


def broken(outcome: EpisodeResult, *, split: str = "") -> float:
    raise ZeroDivisionError(f"{outcome.reward} {split}")


def impossible(outcome: EpisodeResult, weather: str) -> float:
    raise AssertionError(outcome, weather)


def by_level(outcome: EpisodeResult, task: Any) -> float:
    assert task["id"] == TASK.id
    return (outcome.reward or 0.0) * task["metadata"]["level"]


WON = ToolResult("won", 1.0, finished=True)
OPENING = (Message(role="user", content="play"),)


def episode(function: str, result: ToolResult | Exception) -> Episode:
    return episode_of([load_shape(f"tests.unit.test_shaping:{function}")], result)


def episode_of(shapes: list[Shape], result: ToolResult | Exception) -> Episode:
    return Episode(
        TASK,
        lambda: FakeSession(lambda _name, _done: result),
        RULES,
        RewardSteps(RULES.reward, shapes),
        OPENING,
    )


def test_a_function_gets_what_its_parameters_name_and_returns_metrics() -> None:
    one = episode("told", ToolResult("won", 1.0, finished=True))
    one.step(call("win", room=4))
    outcome = one.settle()
    assert outcome.reward == 1.0
    assert dict(outcome.metrics) == {"calls": 1.0, "room": 4.0}
    metrics = episode_metrics([EpisodeFacts("e", "t", outcome, 1)], 1, 1.0)
    assert metrics["reward_fn/calls"] == 1.0
    assert metrics["reward_fn/room"] == 4.0


def test_a_tasks_metadata_is_asked_for_when_a_function_wants_it() -> None:
    def gone() -> dict[str, Any]:
        raise EnvUnavailable("gone")

    shapes = [load_shape("tests.unit.test_shaping:by_level")]
    outcomes = []
    for metadata in (lambda: {"level": 3}, gone):
        rewards = RewardSteps(RULES.reward, shapes)
        one = Episode(TASK, lambda: FakeSession(lambda *_: WON), RULES, rewards, OPENING, metadata)
        one.step(call("win"))
        outcomes.append(one.settle())
    assert [outcome.reward for outcome in outcomes] == [3.0, None]
    assert outcomes[1].void_reason == "EnvUnavailable: gone"


def test_a_function_that_raises_makes_the_episode_void_and_is_named() -> None:
    one = episode("broken", ToolResult("won", 1.0, finished=True))
    one.step(call("win"))
    outcome = one.settle()
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert outcome.reward_steps == {"reduce": 1.0}, "the steps before the fault"
    assert (
        outcome.void_reason
        == f"reward_fn tests.unit.test_shaping:broken: ZeroDivisionError: 1.0 {TASK.split}"
    )


@pytest.mark.parametrize(
    "given",
    [
        float("inf"),
        "1.0",
        True,
        {},
        {"reward": 1.0, "x": "y"},
    ],
)
def test_what_is_no_finite_number_is_a_fault_of_the_function(given: Any) -> None:
    outcome = EpisodeResult(EpisodeStatus.FINISHED, 1.0, (1.0,), 1, 1, 0)
    with pytest.raises(RewardFnFault, match="reward_fn a:b: ValueError: it gave"):
        shaped_reward(outcome, [Shape("a:b", lambda _: given, None)], {})


def test_a_parameter_that_nothing_fills_is_refused_when_the_function_is_loaded() -> None:
    with pytest.raises(
        XpError, match="has unknown parameters weather; legal ones are outcome, env, split"
    ):
        load_shape("tests.unit.test_shaping:impossible")


def test_a_function_is_found_by_its_name_or_refused() -> None:
    assert load_shape("tests.unit.test_shaping:minus_turns").call is minus_turns
    for name in ("tests.unit.test_shaping:absent", "no_such_module_of_mine:f"):
        with pytest.raises(XpError, match=name):
            load_shape(name)


def of_several(*weighted: tuple[str, float]) -> EpisodeResult:
    shapes = [
        load_shape(f"tests.unit.test_shaping:{function}", weight) for function, weight in weighted
    ]
    one = episode_of(shapes, ToolResult("won", 1.0, finished=True))
    one.step(call("win", room=4))
    return one.settle()


def test_several_functions_give_a_weighted_sum_and_metrics() -> None:
    outcome = of_several(("minus_turns", 1.0), ("told", 0.5), ("placed", -2.0))
    assert outcome.reward == pytest.approx(0.9 + 0.5 * 1.0 - 2.0 * TASK.index)
    expected = {"minus_turns": 0.9, "told": 1.0, "told/calls": 1.0, "told/room": 4.0}
    assert outcome.metrics == pytest.approx({**expected, "placed": float(TASK.index)})
    metrics = episode_metrics([EpisodeFacts("e", "t", outcome, 1)], 1, 1.0)
    assert {name: metrics[f"reward_fn/{name}"] for name in expected} == pytest.approx(expected)


FIRST = "tests.graders_under_test.functions:one"
SECOND = "tests.graders_under_test.functions:two"
ONE = WeightedFnSpec(fn=FIRST, weight=1.0)
TWO = WeightedFnSpec(fn=SECOND, weight=0.25)


@pytest.mark.parametrize(
    ("written", "meant", "recorded"),
    [
        ("null", None, None),
        (FIRST, (ONE,), FIRST),
        (f"[{FIRST}]", (ONE,), FIRST),
        (f"{{fn: {FIRST}, weight: 1.0}}", (ONE,), FIRST),
        (
            f"[{FIRST}, {{fn: {SECOND}, weight: 0.25}}]",
            (ONE, TWO),
            [FIRST, {"fn": SECOND, "weight": 0.25}],
        ),
    ],
)
def test_one_name_is_a_list_of_one_recorded_as_written(
    written: str, meant: Any, recorded: Any
) -> None:
    spec = compose(["env=whodunit", f"env.reward_fn={written}"])
    assert episode_config(spec).members["whodunit"].reward_fn == meant
    assert user_modules(spec) == (("tests",) if meant else ())
    dumped = spec.model_dump(mode="json")
    assert dumped["env"]["members"]["whodunit"]["reward_fn"] == recorded
    assert from_container(dumped) == spec


def test_a_function_of_one_parameter_gets_the_result_whatever_its_name() -> None:
    played = episode("halved", WON)
    played.step(call("win"))
    assert played.settle().reward == 0.5
