"""Outages: opening a session waits them out, a call waits where it provably did not execute, and nothing runs twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import TASK, World
from tests.reliability.proxy import Fault
from tests.support.fake_session import call
from tests.support.waiting import wait_for
from xp.envs.base import EnvUnavailable
from xp.envs.transport import SAID_AFTER
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus


def play(
    world: World, num: int, during: Callable[[int], None] = lambda _: None
) -> list[EpisodeResult]:
    """Whole episodes beside each other, all of one provider."""
    provider = world.provider()
    config = world.config()

    def one(_: int) -> EpisodeResult:
        episode = Episode(TASK, lambda: provider.open(TASK), config)
        for turn, tool in enumerate(("inc", "inc", "submit")):
            during(turn)
            episode.step(call(tool))
        return episode.settle()

    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(one, range(num)))


def check_each_ran_once(world: World, outcomes: list[EpisodeResult]) -> None:
    assert [outcome.status for outcome in outcomes] == [EpisodeStatus.FINISHED] * len(outcomes), (
        outcomes
    )
    assert [outcome.reward for outcome in outcomes] == [1.5] * len(outcomes)
    assert world.effects.count("inc") == 2 * len(outcomes)
    assert world.effects.count("submit") == len(outcomes)
    assert wait_for(lambda: world.effects.count("teardown") == world.effects.count("init"))


def in_http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


BURSTS: dict[str, Fault] = {
    "502": faults.status(502),
    "503 with Retry-After": faults.status(503, {"Retry-After": "1"}),
    "503 with a date": faults.status(503, {"Retry-After": in_http_date(1.0)}),
    "429": faults.status(429),
    "reset": faults.reset(executed=False),
}


@pytest.mark.parametrize("name", BURSTS)
def test_a_burst_while_sessions_open_costs_time_and_no_episode(world: World, name: str) -> None:
    world.proxy.outage(0.5, BURSTS[name])
    check_each_ran_once(world, play(world, 4))


def test_a_first_session_waits_for_a_server_that_is_starting(world: World) -> None:
    """Nothing has answered this provider before: its first request opens a session."""
    provider = world.provider()
    world.proxy.refuse_for(1.0)
    assert provider.open(TASK).prompt()


def deploy_before_the_second_call(world: World, seconds: float) -> Callable[[int], None]:
    everybody = threading.Barrier(4, action=lambda: world.proxy.refuse_for(seconds))

    def during(turn: int) -> None:
        if turn == 1:
            everybody.wait(200)

    return during


def test_a_deploy_in_mid_run_costs_time_and_no_episode(world: World) -> None:
    check_each_ran_once(world, play(world, 4, deploy_before_the_second_call(world, 0.5)))


def test_a_question_to_a_server_that_is_not_there_is_answered_soon(world: World) -> None:
    world.proxy.refuse_for(3600.0)
    began = time.monotonic()
    with pytest.raises(EnvUnavailable, match="cannot connect"):
        world.provider().splits()
    assert time.monotonic() - began < 300.0


def test_an_outage_is_said_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.proxy.inject(
        "", faults.status(503), times=2 * SAID_AFTER
    )  # for two: one of them meets half of it at least
    play(world, 2)
    said = [
        record.getMessage() for record in caplog.records if "does not answer" in record.getMessage()
    ]
    assert len(said) == 1, said
