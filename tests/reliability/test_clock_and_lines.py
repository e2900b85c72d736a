"""Clocks that jump, connections on which nothing comes any more, and sessions that end on the server in mid-episode."""

from __future__ import annotations

import email.utils
import http.client
import time
from urllib.parse import urlsplit

import pytest

from tests.fake_session import call
from tests.ors_server import COUNTER, running
from tests.reliability import proxy as faults
from tests.reliability.conftest import World
from tests.reliability.test_sessions import FAR_BEYOND_S
from xp.envs import ors_replies
from xp.episode.outcome import EpisodeStatus

MONTH = 30 * 86_400.0


@pytest.mark.scorecard(36)
@pytest.mark.parametrize("by", [MONTH, -MONTH])
def test_36_a_jump_of_the_wall_clock_ends_no_episode_and_is_in_no_duration(
    world: World, monkeypatch: pytest.MonkeyPatch, by: float
) -> None:
    episode = world.episode()
    episode.step(call("inc"))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + by)
    episode.step(call("inc"))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED, episode.settle().void_reason
    assert episode.settle().reward == 1.5
    assert 0 < episode.elapsed_s < 300


@pytest.mark.scorecard(36)
def test_36_a_retry_after_of_another_clock_is_not_waited_for_beyond_the_deadline(world: World) -> None:
    date = email.utils.formatdate(time.time() + MONTH, usegmt=True)
    world.proxy.inject("/call", faults.status(503, {"Retry-After": date}), times=99)
    began = time.monotonic()
    episode = world.episode(call_timeout_s=2.0)
    assert episode.step(call("inc")).status is EpisodeStatus.VOID
    assert time.monotonic() - began < FAR_BEYOND_S
    assert world.effects.count("inc") == 0


@pytest.mark.scorecard(37)
def test_37_a_call_on_a_half_open_connection_is_resumed_on_another_one_and_executed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id has arrived, then nothing more, and no end of the connection either."""
    monkeypatch.setattr(ors_replies, "SILENCE_S", world.deadline_s(0.5))
    world.proxy.inject("/call", faults.stalled(faults.EVENT))
    episode = world.episode()
    for name in ("inc", "inc"):
        episode.step(call(name))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert world.effects.count("inc") == 2
    assert len(world.proxy.requests("/call")) == 4


@pytest.mark.scorecard(37)
def test_37_a_connection_that_dies_without_a_word_before_the_answer_costs_a_session_and_no_episode(
    world: World,
) -> None:
    world.proxy.inject("/call", faults.silent(executed=False), skip=1)
    episode = world.episode(call_timeout_s=world.deadline_s(5.0), retries_per_episode=1)
    for name in ("inc", "inc"):
        episode.step(call(name))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert world.effects.most("inc") == 2, "no session executes a call twice"


def expire(world: World) -> None:
    """Let the server forget the session that a client has opened last, as it does with one that is too old."""
    server = running(COUNTER).server
    sid = world.proxy.requests("/create")[-1].headers["x-session-id"]
    for path in ("/delete", "/delete_session"):
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=250)
        connection.request("POST", path, "{}", {"X-API-Key": server.key, "X-Session-ID": sid})
        assert connection.getresponse().status < 500
        connection.close()


@pytest.mark.scorecard(38)
def test_38_a_session_that_expires_in_mid_episode_is_played_again_on_a_fresh_one(world: World) -> None:
    episode = world.episode(retries_per_episode=1)
    episode.step(call("inc"))
    expire(world)
    episode.step(call("inc"))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert len(world.proxy.requests("/create")) == 2


@pytest.mark.scorecard(38)
def test_38_without_retries_it_makes_the_episode_void_and_says_so(world: World) -> None:
    episode = world.episode()
    episode.step(call("inc"))
    expire(world)
    assert episode.step(call("inc")).status is EpisodeStatus.VOID
    outcome = episode.settle()
    assert outcome.reward is None
    assert (outcome.void_reason or "").startswith("SessionLost")
