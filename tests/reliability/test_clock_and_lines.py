"""Clocks that jump, connections on which nothing comes any more, and sessions that end on the server in mid-episode."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import World
from tests.support.fake_session import call
from tests.support.ors_server import COUNTER, running
from xp.envs import transport
from xp.episode.outcome import EpisodeStatus


def test_a_call_on_a_half_open_connection_is_executed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id has arrived, then nothing more, and no end of the connection either."""
    monkeypatch.setattr(transport, "SILENCE_S", world.deadline_s(0.5))
    world.proxy.inject("/call", faults.stalled(faults.EVENT))
    episode = world.episode()
    for name in ("inc", "inc"):
        episode.step(call(name))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert world.effects.count("inc") == 2
    assert len(world.proxy.requests("/call")) == 4


def expire(world: World) -> None:
    """Let the server forget the session that a client has opened last, as it does with one that is too old."""
    server = running(COUNTER).server
    sid = world.proxy.requests("/create")[-1].headers["x-session-id"]
    for path in ("/delete", "/delete_session"):
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=250)
        connection.request("POST", path, "{}", {"X-API-Key": server.key, "X-Session-ID": sid})
        assert connection.getresponse().status < 500
        connection.close()


def test_an_expired_session_is_played_again_on_a_fresh_one(world: World) -> None:
    episode = world.episode(retries_per_episode=1)
    episode.step(call("inc"))
    expire(world)
    episode.step(call("inc"))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert len(world.proxy.requests("/create")) == 2
