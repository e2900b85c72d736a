"""Every environment instance is torn down once, whoever ends its session, and is counted by the test that made it."""

from __future__ import annotations

import asyncio
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.error import HTTPError

import pytest

from tests.ors_server import COUNTER, Effects, running
from tests.reliability.conftest import TASK, World
from tests.reliability.proxy import Exchange, Fault
from tests.reliability.test_sessions import wait_for
from xp.envs import ors_session
from xp.envs.base import DeadlineExceeded


def _post(world: World, sid: str, path: str) -> None:
    request = urllib.request.Request(world.proxy.url + path, b"", {"x-session-id": sid}, method="POST")
    urllib.request.urlopen(request, timeout=250).read()


def _is_open(world: World, sid: str) -> bool:
    with suppress(HTTPError):
        _post(world, sid, "/ping")
        return True
    return False


@pytest.mark.scorecard(23)
def test_23_a_session_that_is_ended_many_times_at_once_is_torn_down_once(world: World) -> None:
    provider = world.provider(max_sessions=12)
    sessions = [provider.open(TASK) for _ in range(12)]
    sids = [_sid(exchange) for exchange in world.proxy.requests("/create")]
    with ThreadPoolExecutor(32) as pool:
        ends = [pool.submit(_post, world, sid, path) for sid in sids for path in 2 * ("/delete", "/delete_session")]
        ends += [pool.submit(session.close) for session in sessions]
        for end in ends:
            end.result()
    provider.close()
    assert wait_for(lambda: not world.effects.still_open())
    assert (world.effects.count("init"), world.effects.count("teardown")) == (12, 12)
    assert world.effects.most("teardown") == 1


def test_a_session_that_an_earlier_test_left_open_is_not_counted_by_a_later_one(world: World) -> None:
    session = world.session()
    later = Effects(running(COUNTER).effects)
    other = world.session()
    session.close()
    other.close()
    assert wait_for(lambda: world.effects.count("teardown") == 2)
    assert (later.count("init"), later.count("teardown")) == (1, 1)


def _late(world: World) -> Fault:
    """Executed when its client has given up and ended the session, as a busy server does."""

    async def fault(exchange: Exchange) -> None:
        while not any(_sid(end) == _sid(exchange) for end in world.proxy.requests("/delete_session")):
            await asyncio.sleep(0.02)
        await (await exchange.execute()).read()

    return fault


def _sid(exchange: Exchange) -> str:
    return exchange.headers["x-session-id"]


@pytest.mark.parametrize("pauses", [(3600.0,), (1.0,) * 60], ids=["with the provider", "after a pause"])
def test_a_session_that_the_server_made_after_its_client_had_given_up_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, ...]
) -> None:
    monkeypatch.setattr(ors_session, "END_AGAIN_S", pauses)
    world.proxy.inject("/create", _late(world))
    provider = world.provider(create_timeout_s=0.5)
    while not world.proxy.requests("/create"):  # on a busy machine, the session's id alone may take longer
        with pytest.raises(DeadlineExceeded):
            provider.open(TASK)
    assert wait_for(lambda: world.effects.count("init") == 1)
    if len(pauses) == 1:
        (creation,) = world.proxy.requests("/create")
        assert wait_for(lambda: _is_open(world, _sid(creation)))
        provider.close()
    assert wait_for(lambda: not world.effects.still_open())
    assert world.effects.most("teardown") == 1
