"""Which faults are worth another try, and after how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from xp.envs.base import (
    EnvFault,
    EnvUnavailable,
    NotOffered,
    ProtocolError,
    ResponseLost,
    SessionLost,
    ToolCrashed,
    UnsafeOrigin,
)
from xp.envs.retry import Refused, RetryRule, Unreachable, retry_after_s
from xp.envs.target import Target
from xp.envs.transport import Repeat, Transport

Answer = tuple[int, dict[str, str]]
ONCE = RetryRule()
AGAIN = RetryRule((Refused, ResponseLost))


OUTAGE = RetryRule((Refused, ResponseLost), (ResponseLost,))


def lost(retry_after_s: float | None = None) -> ResponseLost:
    fault = ResponseLost("503")
    fault.retry_after_s = retry_after_s
    return fault


@pytest.mark.parametrize(
    ("rule", "fault", "attempt", "left_s", "wait_s"),
    [
        # What may have been executed is repeated only where that is safe, and as often as the rule says.
        (ONCE, ResponseLost("x"), 1, 60.0, None),
        (ONCE, ProtocolError("x"), 1, 60.0, None),
        (AGAIN, lost(), 1, 60.0, 0.25),
        (AGAIN, lost(), 4, 60.0, 2.0),
        (AGAIN, lost(), 5, 60.0, None),
        # A wait that would reach the deadline is not begun.
        (ONCE, Refused("x"), 1, 0.26, 0.25),
        (ONCE, Refused("busy", 60.0), 1, 60.25, None),
        # It is never shorter than the server asked for.
        (ONCE, Refused("busy", 1.0), 1, 1e9, 1.15),
        (ONCE, Refused("busy", 3600.0), 1, 1e9, 3600.25),
        # A backend that is starting, and an outage, are waited out; in an outage an hour is a minute.
        (ONCE, Refused("starting", 2.0, is_starting=True), 500, 60.0, 2.25),
        (OUTAGE, lost(), 500, 60.0, 8.0),
        (OUTAGE, Refused("429"), 5, 60.0, None),
        (OUTAGE, lost(3600.0), 1, 600.0, 60.25),
        (OUTAGE, Refused("429", 3600.0), 1, 1e9, 3600.25),
    ],
)
def test_which_faults_are_retried_after_which_wait(
    rule: RetryRule,
    fault: EnvFault,
    attempt: int,
    left_s: float,
    wait_s: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("random.random", lambda: 0.5)
    assert rule.wait_s(fault, attempt, left_s) == (
        None if wait_s is None else pytest.approx(wait_s)
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("1.5", 1.5),
        ("Sat, 21 Nov 2026 06:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 05:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("9" * 400, None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after_s(header, now=1795240800.0) == seconds


@asynccontextmanager
async def transport_to(answers: list[Answer]) -> AsyncIterator[tuple[Transport, list[str]]]:
    """A transport to a server with these answers, the last of them forever, and the paths asked for."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        status, headers = answers[min(len(paths), len(answers)) - 1]
        return web.Response(status=status, headers={"Retry-After": "0", **headers})

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with TestServer(app) as server:
        transport = Transport(Target(str(server.make_url("")).rstrip("/"), None, {}, {}))
        try:
            yield transport, paths
        finally:
            await transport.close()


def deadline() -> float:
    return asyncio.get_running_loop().time() + 50


async def request(
    answers: list[Answer], repeat: Repeat = Repeat.CALL, requests: int = 1, sid: str | None = None
) -> int:
    """The number of attempts of some requests together."""
    async with transport_to(answers) as (transport, paths):
        for _ in range(requests):
            await transport.request("GET", "/a", deadline=deadline(), repeat=repeat, sid=sid)
        return len(paths)


STARTING = {"X-Backend-State": "starting"}


@pytest.mark.parametrize(
    ("status", "sid", "fault"),
    [
        (307, None, UnsafeOrigin),
        (302, None, ProtocolError),
        (400, None, NotOffered),
        (403, "s", EnvUnavailable),
        (404, "s", SessionLost),
        (404, None, NotOffered),
        (429, "s", Refused),
        (500, None, ToolCrashed),
        (503, None, ResponseLost),
    ],
)
def test_a_status_is_its_fault(status: int, sid: str | None, fault: type[EnvFault]) -> None:
    places = {307: "http://other.example/b", 302: "/b"}
    headers = {"Location": places[status]} if status in places else {}
    with pytest.raises(EnvFault) as caught:
        asyncio.run(request([(status, headers)], sid=sid))
    assert type(caught.value) is fault


@pytest.mark.parametrize(
    ("repeat", "status", "headers", "attempts"),
    # How many such answers are followed by another attempt: 5 attempts are permitted, an outage has more.
    [
        (Repeat.QUESTION, 503, {}, 9),
        (Repeat.CREATION, 503, {}, 1),
        (Repeat.CALL, 429, {}, 5),
        (Repeat.CALL, 503, STARTING, 9),
        (Repeat.RESUMPTION, 503, {}, 5),
    ],
)
def test_each_kind_of_request_has_its_rule(
    repeat: Repeat, status: int, headers: dict[str, str], attempts: int
) -> None:
    refused = [(status, headers)] * (attempts - 1)
    assert asyncio.run(request([*refused, (200, {})], repeat)) == attempts
    more = request([*refused, (status, headers), (200, {})], repeat)
    if attempts == 9:
        assert asyncio.run(more) == attempts + 1
    else:
        with pytest.raises(EnvFault):
            asyncio.run(more)


async def pause_before_the_last_attempt(is_known: bool) -> None:
    async with transport_to([(200, {})]) as (transport, _):
        if is_known:
            await transport.request("GET", "/a", deadline=deadline(), repeat=Repeat.CALL)
        await transport.pause(Repeat.QUESTION, Unreachable("x", 0.0), 5, deadline())


def test_a_question_to_an_address_that_never_answered_is_tried_a_few_times_only() -> None:
    asyncio.run(pause_before_the_last_attempt(is_known=True))
    with pytest.raises(Unreachable):
        asyncio.run(pause_before_the_last_attempt(is_known=False))
