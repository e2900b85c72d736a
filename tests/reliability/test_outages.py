"""Outages: opening a session waits them out, a call waits where it provably did not execute, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
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
from tests.support.ors_server import rules
from tests.support.waiting import wait_for
from xp.envs import retry
from xp.envs.base import EnvUnavailable, Task
from xp.envs.local_server import LocalServer
from xp.envs.openenv import OpenEnvProvider
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
    world.proxy.refuse_for(2.0)
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


OPENENV = "tests.envs_under_test.openenv_counter"


def gateway_before(server: LocalServer, num_refused: int, loop: asyncio.AbstractEventLoop) -> str:
    """A relay that answers its first exchanges with 503 and passes the others through; the URL."""
    port = int(server.url.rpartition(":")[2])
    left = iter(range(num_refused))

    async def pump(source: asyncio.StreamReader, goal: asyncio.StreamWriter) -> None:
        while piece := await source.read(65536):
            goal.write(piece)
        goal.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *rest = (await reader.readuntil(b"\r\n\r\n")).splitlines(keepends=True)
        if next(left, None) is not None:
            writer.write(b"HTTP/1.1 503 x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        upstream, goal = await asyncio.open_connection("127.0.0.1", port)
        own = f"host: 127.0.0.1:{port}\r\nx-api-key: {server.key}\r\n".encode()  # as a gateway does
        goal.write(
            first + own + b"".join(line for line in rest if not line.lower().startswith(b"host:"))
        )
        await asyncio.gather(pump(reader, goal), pump(upstream, writer))

    started = asyncio.run_coroutine_threadsafe(
        asyncio.start_server(serve, "127.0.0.1", 0), loop
    ).result(250)
    return f"http://127.0.0.1:{started.sockets[0].getsockname()[1]}"


def test_a_gateways_503_while_an_openenv_session_opens_is_waited_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "BASE_S", 0.05)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    with LocalServer(f"{OPENENV}:Counter", kind="openenv") as server:
        url = gateway_before(server, 4, loop)
        config = rules(
            provider="openenv", target=url, rows="tests.envs_under_test.rows:counts", num_seeds=4
        )
        provider = OpenEnvProvider(config, os.environ)
        session = provider.open(Task("x", "train", 0))
        assert session.call("step", {"amount": 7}).reward == 7.0
        session.close()
        provider.close()
    loop.call_soon_threadsafe(loop.stop)
