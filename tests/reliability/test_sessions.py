"""Sessions under faults: opened whole or torn down, noticed when lost, ended on the server on every path."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.reliability import proxy as faults
from tests.reliability.conftest import PATIENT, TASK, World
from tests.reliability.proxy import Fault, FaultProxy
from tests.support.cases import few
from tests.support.fake_session import call
from tests.support.ors_server import COUNTER, Effects, rules, running
from tests.support.sections import replace
from tests.support.waiting import FAR_BEYOND_S, wait_for
from xp.envs import local_server, openreward
from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    EnvUnavailable,
    ProtocolError,
    ResponseLost,
    SessionLost,
    Task,
)
from xp.envs.local_server import LocalServer
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeStatus

OPENING: dict[str, tuple[str, Fault, type[EnvFault]]] = {
    "create_session 503 for ever": ("/create_session", faults.status(503), ResponseLost),
    "create 503 for ever": ("/create", faults.status(503), ResponseLost),
    "create executed and lost": ("/create", faults.reset(executed=True), ResponseLost),
    "create 500": ("/create", faults.status(500, executed=True), EnvFault),
    "prompt is HTML": ("/messages", faults.replied(b"<html>", "text/html"), ProtocolError),
}


@pytest.mark.parametrize("name", OPENING)
def test_an_opening_that_fails_leaves_nothing_on_the_server(world: World, name: str) -> None:
    path, fault, kind = OPENING[name]
    world.proxy.inject(path, fault, times=99)
    provider = world.provider(max_sessions=1, create_timeout_s=0.5)
    for _ in range(2):  # The second try would wait for ever for a slot that the first one kept.
        with pytest.raises(
            (kind, DeadlineExceeded)
        ):  # what is waited out may be cut by the deadline in mid-try
            provider.open(TASK)
    assert wait_for(lambda: world.effects.count("teardown") == world.effects.count("init"))
    sids = [exchange.headers["x-session-id"] for exchange in world.proxy.requests("/create")]
    assert len(sids) == len(set(sids)), (
        "a creation that may have executed was sent again for the same session"
    )


def test_a_closed_session_is_torn_down_and_says_so(world: World) -> None:
    provider = world.provider()
    session = provider.open(TASK)
    session.close()
    session.close()
    with pytest.raises(SessionLost):
        session.call("inc", {})
    provider.close()
    assert wait_for(lambda: world.effects.count("teardown") == 1)
    with pytest.raises(EnvUnavailable):
        provider.open(TASK)


FORGETFUL = """
import os, sys
sys.path[:0] = {path!r}
from tests.reliability.conftest import TASK
from tests.support.ors_server import rules
from xp.envs.config import load_provider
provider = load_provider(rules(target={url!r}, variant="counter"), os.environ)
sessions = [provider.open(TASK) for _ in range(3)]
sessions[0].call("inc", {{}})
{end}
"""


@pytest.mark.parametrize("end", few(["os.kill(os.getpid(), 2)", "raise ValueError"], 1))
def test_sessions_that_a_program_forgot_are_ended_with_it(world: World, end: str) -> None:
    path = [entry or os.getcwd() for entry in sys.path]
    program = FORGETFUL.format(path=path, url=world.proxy.url, end=end)
    subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert world.effects.count("init") == 3
    assert wait_for(lambda: world.effects.count("teardown") == 3)


@pytest.fixture(scope="module")
def restarted() -> Iterator[LocalServer]:
    """A server after a restart: the same environments, and no sessions."""
    with LocalServer(COUNTER) as server:
        yield server


def test_an_episode_over_a_restart_is_played_again_once(
    world: World, restarted: LocalServer
) -> None:
    episode = world.episode(retries_per_episode=1)
    episode.step(call("inc"))
    world.proxy.upstream = restarted
    episode.step(call("inc"))
    assert episode.step(call("submit")).status is EpisodeStatus.FINISHED
    assert episode.settle().reward == 1.5
    assert len(world.proxy.requests("/create")) == 2


def test_a_server_that_stays_away_voids_within_the_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_server, "PING_S", 3600.0)
    monkeypatch.setattr(openreward, "CLOSE_S", 0.2)  # Nobody answers that a session is closed.
    config = rules(serve=COUNTER, **{**PATIENT, "retries_per_episode": 1})
    provider = OpenRewardProvider(config, os.environ)
    episode = Episode(TASK, lambda: provider.open(TASK), config)
    assert episode.step(call("inc")).status is EpisodeStatus.ONGOING
    assert provider.server is not None
    short = replace(config.limits, create_timeout_s=1.0, call_timeout_s=2.0)
    monkeypatch.setattr(provider._core(), "limits", short)  # The first opening may take longer.
    os.kill(provider.server.pid or 0, signal.SIGKILL)
    began = time.monotonic()
    assert episode.step(call("inc")).status is EpisodeStatus.VOID
    assert time.monotonic() - began < FAR_BEYOND_S
    provider.close()


def test_a_lost_session_is_noticed_within_fifteen_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openreward, "PING_EVERY_S", 0.2)
    session = world.session(call_timeout_s=3600.0)
    world.proxy.inject("/call", faults.silent(executed=False))
    world.proxy.inject(
        "/ping", faults.status(404), times=10_000, skip=2
    )  # a ping may miss its short deadline
    began = time.monotonic()
    with pytest.raises(SessionLost):
        session.call("inc", {})
    assert time.monotonic() - began < FAR_BEYOND_S


def test_a_session_that_the_server_resumes_continues_with_its_state(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is moved answers 404 for a while; the SDK's client goes on as well."""
    monkeypatch.setattr(openreward, "PING_EVERY_S", 0.2)
    session = world.session()
    session.call("inc", {})
    world.proxy.inject("/ping", faults.status(404), times=openreward.MOST_MISSES - 1)
    assert wait_for(lambda: len(world.proxy.requests("/ping")) > openreward.MOST_MISSES)
    assert session.call("inc", {}).text == "2"
    assert world.effects.most("inc") == 2


def test_a_comparison_of_a_group_is_resumed_and_paid_once(world: World) -> None:
    del world
    server = running("tests.envs_under_test.counter:Debate")
    effects = Effects(server.effects)
    with FaultProxy(server.server) as proxy:
        proxy.inject("/score_group", faults.reset_after_task_id, times=1)
        config = rules(target=proxy.url, allowed_origins=(proxy.url,), **PATIENT)
        provider = OpenRewardProvider(config, os.environ)
        dialogues = [
            [{"role": "user", "content": "Argue."}, {"role": "assistant", "content": text}]
            for text in ("a", "abc")
        ]
        assert provider.score_group(Task("fake", "train", 0), dialogues) == [0.0, 1.0]  # type: ignore[arg-type]
        provider.close()
        first, second = proxy.requests("/score_group")
    assert b'"task_id"' not in first.body
    assert b'"task_id"' in second.body
    assert effects.count("compared") == 2, "both orders, each once"
