"""Tool calls under faults: executed at most once, ended in time, and never scored for what the network did."""

from __future__ import annotations

import time

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import World, played
from tests.reliability.proxy import Fault
from tests.support.fake_session import call
from tests.support.waiting import FAR_BEYOND_S
from xp.envs import retry, transport
from xp.envs.base import DeadlineExceeded, EnvUnavailable, ResponseLost
from xp.envs.retry import MAX_ATTEMPTS
from xp.episode.outcome import EpisodeStatus

SILENT = "executed, then silence"
"""A fault that ends at the call's deadline."""
LOST: dict[str, Fault] = {
    "executed, then 502": faults.status(502, executed=True),
    "executed, then reset": faults.reset(executed=True),
    "executed, then 200 and closed": faults.closed_after_200(),
    "reset": faults.reset(executed=False),
    SILENT: faults.silent(executed=True),
}
REFUSED: dict[str, Fault] = {
    "429": faults.status(429),
    "503 of a backend that is starting": faults.status(
        503, {"X-Backend-State": "starting", "Retry-After": "1"}
    ),
}


def deadline(world: World, name: str) -> dict[str, float]:
    """Limits of an episode: a deadline to be waited for where the fault ends there."""
    return {"call_timeout_s": world.deadline_s(1.0)} if name == SILENT else {}


@pytest.mark.parametrize("name", LOST)
def test_a_retried_episode_runs_each_call_once_on_a_fresh_session(world: World, name: str) -> None:
    episode = world.episode(retries_per_episode=1, **deadline(world, name))
    world.proxy.inject("/call", LOST[name], times=1, skip=1)
    outcome = played(episode)
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.5
    assert world.effects.count("init") == 2
    assert world.effects.most("inc") == 2
    assert world.effects.most("submit") == 1


@pytest.mark.parametrize("name", LOST)
def test_a_lost_final_answer_is_never_zero(world: World, name: str) -> None:
    episode = world.episode(**deadline(world, name))
    world.proxy.inject("/call", LOST[name], times=1, skip=2)
    outcome = played(episode)
    assert outcome.status == EpisodeStatus.VOID
    assert outcome.reward is None
    assert world.effects.count("submit") == (name != "reset")
    assert len(world.proxy.requests("/call")) == 3, "no call is repeated"


def test_an_answer_that_was_begun_is_resumed_with_its_reward(world: World) -> None:
    times = 2
    world.proxy.inject("/call", faults.reset_after_task_id, times, skip=2)
    outcome = played(world.episode())
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.5
    assert world.effects.count("submit") == 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_call_is_tried_again_and_runs_once(world: World, name: str) -> None:
    world.proxy.inject("/call", REFUSED[name], times=1)
    episode = world.episode()
    began = time.monotonic()
    assert episode.step(call("inc")).status is EpisodeStatus.ONGOING
    assert time.monotonic() - began >= (1.0 if "503" in name else retry.BASE_S / 2)
    assert world.effects.count("inc") == 1


def test_refusals_without_end_stop_at_the_allowed_number(world: World) -> None:
    world.proxy.inject("/call", faults.status(429), times=99)
    with pytest.raises(EnvUnavailable):
        world.session().call("inc", {})
    assert len(world.proxy.requests("/call")) == MAX_ATTEMPTS
    assert world.effects.count("inc") == 0


STALLS: dict[str, Fault] = {
    "no answer": faults.silent(executed=False),
    "nothing after the id": faults.stalled(faults.EVENT),
    "comments after the id": faults.stalled(faults.EVENT, comments=True),
}


@pytest.mark.parametrize("name", STALLS)
def test_a_stalled_call_ends_at_its_deadline(world: World, name: str) -> None:
    world.proxy.inject("/call", STALLS[name], times=99)
    session = world.session(call_timeout_s=1.0)
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        session.call("inc", {})
    assert time.monotonic() - began < FAR_BEYOND_S
    assert world.effects.count("inc") <= 1


def test_a_finish_that_was_lost_is_recognised_by_the_next_call(world: World) -> None:
    session = world.session()
    session.call("submit", {})
    with pytest.raises(ResponseLost, match="had finished"):
        session.call("inc", {})


def test_a_call_on_a_half_open_connection_is_executed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id has arrived, then nothing more, and no end of the connection either."""
    monkeypatch.setattr(transport, "SILENCE_S", world.deadline_s(0.5))
    world.proxy.inject("/call", faults.stalled(faults.EVENT))
    outcome = played(world.episode())
    assert outcome.status == EpisodeStatus.FINISHED
    assert outcome.reward == 1.5
    assert world.effects.count("inc") == 2
    assert len(world.proxy.requests("/call")) == 4
