"""Sends every request to a server of environments: with deadline, size and origin checked, and with retries."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urljoin

import aiohttp

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    EnvUnavailable,
    NotOffered,
    ProtocolError,
    ResponseLost,
    SessionLost,
    ToolCrashed,
    UnsafeOrigin,
)
from xp.envs.retry import AtCapacity, Refused, RetryRule, Unreachable, retry_after_s
from xp.envs.target import Target, origin
from xp.errors import XpError
from xp.lib.text import valid_text

MAX_ERROR_BYTES: Final = 4096
GATEWAY: Final = (502, 503, 504)
SILENCE_S: Final = 25.0
"""Seconds without an event after which a call is resumed, if possible; servers send a comment every 10 s."""
DRAIN_S: Final = 0.2
EVENTS: Final = "text/event-stream"
IDLE_CONNECTION_S: Final = 4.0
"""Seconds that an idle connection is kept; below the servers' own limits (uvicorn: 5 s), so that a call never uses a
connection that is being closed."""
SAID_AFTER: Final = 4
"""Attempts after which an outage is reported, once until its end."""
_LOST: Final = (Refused, ResponseLost)


class Event(NamedTuple):
    name: str
    data: str


class EventReader:
    """Converts the bytes of a stream to events (WHATWG's rules; ids are not kept)."""

    def __init__(self) -> None:
        self._tail = bytearray()
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes.

        Raises:
            ValueError: a line is not UTF-8.
        """
        self._tail += piece
        if b"\n" not in piece and b"\r" not in piece:
            return []
        lines = bytes(self._tail).splitlines(keepends=True)
        # An incomplete line waits for more bytes, and so does "\r", which may be the first half of "\r\n".
        self._tail = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
        events: list[Event] = []
        for line in lines:
            self._take(line.rstrip(b"\r\n").decode(), events)
        return events

    def _take(self, line: str, events: list[Event]) -> None:
        if not line:
            if self._data:
                events.append(Event(self._name or "message", "\n".join(self._data)))
            self._name = ""
            self._data = []
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)


T = TypeVar("T")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Converts aiohttp's exceptions, which include the request's headers, to EnvFaults."""
    try:
        yield
    except Exception as error:
        fault = _fault(error, what)
        if fault is None:
            raise
        raise fault from None


def _fault(error: BaseException, what: str) -> EnvFault | None:
    match error:
        case (
            aiohttp.ClientConnectorCertificateError()
            | aiohttp.ClientConnectorSSLError()
            | aiohttp.InvalidURL()
        ):
            return EnvUnavailable(f"{what}: {type(error).__name__}")
        case aiohttp.ClientConnectorError():
            return Unreachable(
                f"{what}: cannot connect ({error.os_error.strerror or type(error.os_error).__name__})"
            )
        case aiohttp.WSServerHandshakeError() if error.status in (429, *GATEWAY):
            # A session ends with its connection, so a new attempt finds no remains.
            header = error.headers.get("Retry-After") if error.headers else None
            return Refused(f"{what}: {error.status}", retry_after_s(header, time.time()))
        case aiohttp.ClientResponseError():
            return ProtocolError(f"{what}: not HTTP ({type(error).__name__})")
        case aiohttp.ClientError() | ConnectionError() | ssl.SSLError():
            return ResponseLost(f"{what}: connection lost ({type(error).__name__})")
    return None


async def raise_for_status(
    response: aiohttp.ClientResponse, what: str, has_session: bool, url: str
) -> None:
    status = response.status
    where = f"{what} on {origin(url)}: {status}"
    if 300 <= status < 400:
        # The whole address may have a token.
        try:
            other = origin(urljoin(url, response.headers.get("Location", "")))
        except (XpError, ValueError):
            other = "another place"
        if other == origin(url):
            raise ProtocolError(f"{where}, a redirect to the same server, which was not followed")
        raise UnsafeOrigin(f"{where}, a redirect to {other}, which was not followed")
    detail = await _detail(response)
    is_starting = response.headers.get("X-Backend-State") == "starting"
    wait = retry_after_s(response.headers.get("Retry-After"), time.time())
    if status == 429 or (status == 503 and is_starting):
        raise Refused(f"{where} {detail}", wait, is_starting and status == 503)
    if status in (404, 410) and has_session:
        raise SessionLost(f"{where} {detail}")
    if status in (401, 403):
        raise EnvUnavailable(f"{where}: the server requires another API key, or none was sent")
    if status in GATEWAY:
        fault = ResponseLost(f"{where} {detail}")
        fault.retry_after_s = wait
        raise fault
    if status >= 500:
        raise ToolCrashed(f"{where} {detail}")
    raise NotOffered(f"{where} {detail}")


async def _detail(response: aiohttp.ClientResponse) -> str:
    """The server's description of an error; empty if there is none."""
    try:
        value = json.loads(await response.content.read(MAX_ERROR_BYTES))
    except (aiohttp.ClientError, ValueError, RecursionError):
        return ""
    if not isinstance(value, dict) or value.get("detail") is None:
        return ""
    return valid_text(str(value["detail"]))[:300]


async def read_result(
    response: aiohttp.ClientResponse, what: str, progress: list[str], is_resumed: bool
) -> str:
    """Reads events up to `end` and joins the result's pieces."""
    if response.content_type != EVENTS:
        raise ProtocolError(
            f"{what}: the answer is {response.content_type[:60]!r}, not an event stream"
        )
    reader = EventReader()
    pieces = list[str]()
    while True:
        try:
            async with asyncio.timeout(SILENCE_S if progress else None):
                piece = await response.content.readany()
        except TimeoutError:
            raise ResponseLost(f"{what}: {SILENCE_S:g} s of silence") from None
        if not piece:
            raise ResponseLost(f"{what}: the stream ended before its result")
        try:
            events = reader.feed(piece)
        except ValueError:
            raise ProtocolError(f"{what}: the stream is not UTF-8") from None
        for name, data in events:
            if name == "task_id":
                if data.strip():
                    progress.append(data.strip())
            elif name in ("chunk", "end"):
                pieces.append(data)
                if name == "end":
                    with suppress(
                        TimeoutError, aiohttp.ClientError
                    ):  # Its connection can then be used again.
                        async with asyncio.timeout(DRAIN_S):
                            await response.content.read()
                    return "".join(pieces)
            elif name == "error":
                if is_resumed and data == "unknown task_id":
                    raise ProtocolError(
                        f"{what}: the server has forgotten the call that was to be resumed"
                    )
                raise ToolCrashed(f"{what}: {data[:500]}")


_log = logging.getLogger(__name__)


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


RULES: Final[Mapping[Repeat, RetryRule]] = {
    Repeat.QUESTION: RetryRule(_LOST, _LOST),
    Repeat.NOTICE: RetryRule(_LOST),
    Repeat.OPENING: RetryRule(_LOST, _LOST),
    Repeat.CREATION: RetryRule((Refused,), (Refused,)),
    Repeat.CALL: RetryRule((Refused,), (Unreachable,)),
    Repeat.RESUMPTION: RetryRule(_LOST, (Unreachable,)),
}


class Transport:
    """Requests to one target. Every method runs on the process's loop and raises EnvFault only.

    Args:
        target: the server, and the secrets that may be sent to it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
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
    ) -> bytes:
        """Sends a request and returns the body of the answer.

        Args:
            deadline: end of all attempts together, on the loop's clock.
            repeat: rule for further attempts.
        """
        what = f"{method} {path}"

        async def send() -> bytes:
            async with self._open(method, path, body, sid, with_secrets) as response:
                await self._accept(response, what, sid)
                text: bytes = await response.read()
                return text

        return await self._repeated(send, what, lambda: repeat, deadline)

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

        async def send() -> str:
            resumed = {**body, "task_id": progress[-1]} if progress else body
            async with self._open("POST", path, resumed, sid, with_secrets, EVENTS) as response:
                await self._accept(response, what, sid)
                return await read_result(response, what, progress, is_resumed=resumed is not body)

        def rule() -> Repeat:
            if progress and repeat is Repeat.CALL:
                return Repeat.RESUMPTION
            return repeat

        return await self._repeated(send, what, rule, deadline)

    async def _repeated(
        self,
        send: Callable[[], Awaitable[T]],
        what: str,
        repeat: Callable[[], Repeat],
        deadline: float,
    ) -> T:
        attempt = 0
        async with until(deadline, f"{what}: no complete answer"):
            while True:
                attempt += 1
                try:
                    with translated(f"{what} on {self._origin}"):
                        return await send()
                except EnvFault as fault:
                    await self.pause(repeat(), fault, attempt, deadline)

    async def pause(self, repeat: Repeat, fault: EnvFault, attempt: int, deadline: float) -> None:
        """Waits before the next attempt; raises `fault` if there is none.

        Args:
            attempt: number of attempts so far, from 1.
            deadline: end of all attempts, on the loop's clock.
        """
        left = deadline - asyncio.get_running_loop().time()
        if repeat is Repeat.QUESTION and isinstance(fault, Unreachable) and not self._has_answered:
            repeat = Repeat.NOTICE
        rule = RULES[repeat]
        wait = rule.wait_s(fault, attempt, left)
        if wait is None:
            raise fault
        if attempt >= SAID_AFTER and rule.should_continue(fault) and not self._is_out:
            self._is_out = True
            if isinstance(fault, AtCapacity):
                state = "is at capacity"
            else:
                state = f"does not answer ({type(fault).__name__})"
            _log.warning("%s %s; trying again for %.0f s", self._origin, state, left)
        await asyncio.sleep(wait)

    async def close(self) -> None:
        """Ends the connections; a later request raises EnvUnavailable and leaves nothing open."""
        self._is_closed = True
        client = self._client
        self._client = None
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
            headers["X-Session-ID"] = sid
        if with_secrets:
            headers.update(self.target.secrets)
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = _encoded(body, path)
        client = self._client or self._connect()
        return client.request(
            method, self.target.url + path, headers=headers, data=data, allow_redirects=False
        )

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
        raise ProtocolError(
            f"{path}: the request cannot be written as JSON ({type(error).__name__})"
        ) from None


def deadline_in(seconds: float) -> float:
    """A deadline on the running loop's clock."""
    return asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def until(deadline: float, fault: str) -> AsyncIterator[None]:
    """Context manager that raises DeadlineExceeded at the deadline, on the loop's clock; the message begins with the
    fault."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{fault} in time") from None
