"""Every environment instance is torn down once, whoever ends its session, and is counted by the test that made it."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor

from tests.reliability.conftest import TASK, World
from tests.reliability.proxy import Exchange
from tests.support.waiting import wait_for


def _post(world: World, sid: str, path: str) -> None:
    request = urllib.request.Request(
        world.proxy.url + path, b"", {"x-session-id": sid}, method="POST"
    )
    urllib.request.urlopen(request, timeout=250).read()


def test_a_session_ended_many_times_is_torn_down_once(world: World) -> None:
    provider = world.provider(max_sessions=12)
    sessions = [provider.open(TASK) for _ in range(12)]
    sids = [_sid(exchange) for exchange in world.proxy.requests("/create")]
    with ThreadPoolExecutor(32) as pool:
        ends = [
            pool.submit(_post, world, sid, path)
            for sid in sids
            for path in 2 * ("/delete", "/delete_session")
        ]
        ends += [pool.submit(session.close) for session in sessions]
        for end in ends:
            end.result()
    provider.close()
    assert wait_for(lambda: not world.effects.still_open())
    assert world.effects.count("init") == 12
    assert world.effects.count("teardown") == 12
    assert world.effects.most("teardown") == 1


def _sid(exchange: Exchange) -> str:
    return exchange.headers["x-session-id"]
