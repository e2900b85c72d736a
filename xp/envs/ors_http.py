"""Sends every request to an ORS server, with checks of deadline, origin and size, and with retries."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeVar

import aiohttp

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    EnvUnavailable,
    ProtocolError,
    ResponseLost,
)
from xp.envs.ors_faults import raise_for_status, translated
from xp.envs.ors_replies import EVENTS, MAX_REPLY_BYTES, read_body, read_result
from xp.envs.retry import Refused, RetryRule, Unreachable
from xp.envs.target import Target, origin

MAX_LISTING_BYTES: Final = 64 * 1024 * 1024
"""Largest size of a list of tasks."""
IDLE_CONNECTION_S: Final = 4.0
"""Seconds that an idle connection is kept; below the servers' own limits (uvicorn: 5 s), so that a call never uses a
connection that is being closed."""
SAID_AFTER: Final = 4
"""Attempts after which an outage is reported, once until its end."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Repeat(Enum):
    """Rule by which a request is sent again."""

    QUESTION = "question"
    """Idempotent; an outage is waited out until the deadline. Connections that are refused by a server that has never
    answered are tried a few times only: the address may be wrong."""
    NOTICE = "notice"
    """Idempotent, and nobody waits for the answer: a few attempts."""
    OPENING = "opening"
    """Idempotent; an outage is waited out until the deadline."""
    CREATION = "creation"
    """Executes at most once; every refusal is waited out until the deadline."""
    CALL = "call"
    """Executes at most once; refused connections are waited out until the deadline, other refusals are tried a few
    times."""
    RESUMPTION = "resumption"
    """Request for the result of a call with a known id; executes nothing."""


def rules_of(max_attempts: int) -> Mapping[Repeat, RetryRule]:
    """The rule of each kind of request.

    Args:
        max_attempts: attempts of a request that certainly did not execute, or is safe to repeat.
    """
    lost, refused = (Refused, ResponseLost), (Refused,)
    return {
        Repeat.QUESTION: RetryRule(max_attempts, lost, lost),
        Repeat.NOTICE: RetryRule(max_attempts, lost),
        Repeat.OPENING: RetryRule(max_attempts, lost, lost),
        Repeat.CREATION: RetryRule(max_attempts, refused, refused),
        Repeat.CALL: RetryRule(max_attempts, refused, (Unreachable,)),
        Repeat.RESUMPTION: RetryRule(max_attempts, lost, (Unreachable,)),
    }


class Transport:
    """Requests to one target. Every method runs on the process's loop and raises EnvFault only.

    Args:
        target: the server, and the secrets that may be sent to it.
        max_attempts: see rules_of.
    """

    def __init__(self, target: Target, max_attempts: int) -> None:
        self.target = target
        self._rules = rules_of(max_attempts)
        self._is_out = False
        self._has_answered = False
        self._is_closed = False
        self._client: aiohttp.ClientSession | None = None
        self._origin = origin(target.url)

    async def request(
        self,
        method: str,
        path: str,
        *,
        deadline: float,
        body: Mapping[str, Any] | None = None,
        sid: str | None = None,
        with_secrets: bool = False,
        repeat: Repeat,
        max_bytes: int = MAX_REPLY_BYTES,
    ) -> bytes:
        """Sends a request and returns the body of the answer.

        Args:
            deadline: end of all attempts together, on the loop's clock.
            repeat: rule for further attempts.
            max_bytes: largest size of the answer.
        """
        what = f"{method} {path}"

        async def send() -> bytes:
            async with self._open(method, path, body, sid, with_secrets) as response:
                await self._accept(response, what, sid)
                return await read_body(response, max_bytes, what)

        return await self._repeated(send, what, repeat, deadline)

    async def stream(
        self,
        path: str,
        *,
        deadline: float,
        body: Mapping[str, Any],
        sid: str | None = None,
        with_secrets: bool = False,
        progress: list[str],
        repeat: Repeat = Repeat.CALL,
    ) -> str:
        """Sends a request with a streamed answer and returns the result; resumes a broken stream once its id is known.

        Args:
            progress: receives the request's id when the server sends it.
            repeat: rule for further attempts before that.
        """
        what = f"POST {path}"
        attempt = 0
        async with _until(deadline, what):
            while True:
                attempt += 1
                resumed = {**body, "task_id": progress[-1]} if progress else body
                try:
                    with translated(f"{what} on {self._origin}"):
                        async with self._open("POST", path, resumed, sid, with_secrets, EVENTS) as response:
                            await self._accept(response, what, sid)
                            return await read_result(response, what, progress, is_resumed=resumed is not body)
                except EnvFault as fault:
                    if progress and repeat is Repeat.CALL:
                        repeat = Repeat.RESUMPTION
                    await self.pause(repeat, fault, attempt, deadline)

    async def location(self, path: str, deadline: float) -> str | None:
        """Target of the server's redirect for a bare path; the redirect is not followed."""
        what = f"GET {path}"

        async def send() -> str | None:
            async with self._open("GET", path, None, None, False) as response:
                if response.status in (307, 308):
                    goal: str | None = response.headers.get("Location")
                    return goal
                await self._accept(response, what, None)
                return None

        return await self._repeated(send, what, Repeat.QUESTION, deadline)

    async def _repeated(self, send: Callable[[], Awaitable[T]], what: str, repeat: Repeat, deadline: float) -> T:
        attempt = 0
        async with _until(deadline, what):
            while True:
                attempt += 1
                try:
                    with translated(f"{what} on {self._origin}"):
                        return await send()
                except EnvFault as fault:
                    await self.pause(repeat, fault, attempt, deadline)

    async def pause(self, repeat: Repeat, fault: EnvFault, attempt: int, deadline: float) -> None:
        """Waits before the next attempt; raises `fault` if there is none.

        Args:
            attempt: number of attempts so far, from 1.
            deadline: end of all attempts, on the loop's clock.
        """
        left = deadline - asyncio.get_running_loop().time()
        if repeat is Repeat.QUESTION and isinstance(fault, Unreachable) and not self._has_answered:
            repeat = Repeat.NOTICE
        rule = self._rules[repeat]
        wait = rule.wait_s(fault, attempt, left)
        if wait is None:
            raise fault
        if attempt >= SAID_AFTER and rule.goes_on(fault) and not self._is_out:
            self._is_out = True
            _log.warning("%s does not answer (%s); trying again for %.0f s", self._origin, type(fault).__name__, left)
        await asyncio.sleep(wait)

    async def close(self) -> None:
        """Ends the connections; a later request raises EnvUnavailable and leaves nothing open."""
        self._is_closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _accept(self, response: aiohttp.ClientResponse, what: str, sid: str | None) -> None:
        """Raises EnvFault if the answer is an error."""
        if not 200 <= response.status < 300:
            await raise_for_status(response, what, sid is not None, self.target.url)
        self._is_out = False
        self._has_answered = True

    def _open(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        sid: str | None,
        with_secrets: bool,
        accept: str = "application/json",
    ) -> Any:
        headers = {"Accept": accept, **self.target.headers}
        if sid is not None:
            if not sid.isprintable():
                raise ProtocolError(f"{path}: the server's id of the session holds a control character")
            headers["X-Session-ID"] = sid
        if with_secrets:
            headers.update(self.target.secrets)
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = _encoded(body, path)
        client = self._client or self._connect()
        return client.request(method, self.target.url + path, headers=headers, data=data, allow_redirects=False)

    def check_open(self) -> None:
        """Raises EnvUnavailable after `close`."""
        if self._is_closed:
            raise EnvUnavailable(f"the connection to {self._origin} is closed")

    def _connect(self) -> aiohttp.ClientSession:
        self.check_open()
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Accept-Encoding": "identity", "User-Agent": "xp"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=not self.target.is_loopback,
        )
        return self._client


def _encoded(body: Mapping[str, Any], path: str) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"{path}: the request cannot be written as JSON ({type(error).__name__})") from None


class _until:  # noqa: N801
    """Context manager that raises DeadlineExceeded at the deadline: `async with _until(deadline, what): ...`."""

    __slots__ = ("_timeout", "_what")

    def __init__(self, deadline: float, what: str) -> None:
        self._timeout, self._what = asyncio.timeout_at(deadline), what

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise DeadlineExceeded(f"{self._what}: no complete answer in time") from None
