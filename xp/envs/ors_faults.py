"""Converts failures of requests to types of EnvFault, by which retries and episodes decide."""

from __future__ import annotations

import json
import ssl
import time
from types import TracebackType
from typing import Final
from urllib.parse import urljoin

import aiohttp

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
from xp.envs.retry import Refused, Unreachable, retry_after_s
from xp.envs.target import origin
from xp.errors import XpError
from xp.lib.text import valid_text

MAX_ERROR_BYTES: Final = 4096
GATEWAY: Final = (502, 503, 504)


class translated:  # noqa: N801
    """Converts aiohttp's exceptions, which include the request's headers: `with translated(what): ...`.

    A class, since a generator-based context manager, one per request, costs several times as much.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        fault = None if error is None else _fault(error, self._what)
        if fault is not None:
            raise fault from None


def _fault(error: BaseException, what: str) -> EnvFault | None:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError() | aiohttp.InvalidURL():
            return EnvUnavailable(f"{what}: {type(error).__name__}")
        case aiohttp.ClientConnectorError():
            return Unreachable(f"{what}: cannot connect ({error.os_error.strerror or type(error.os_error).__name__})")
        case aiohttp.WSServerHandshakeError() if error.status in (429, *GATEWAY):
            # A session ends with its connection, so a new attempt finds no remains.
            header = error.headers.get("Retry-After") if error.headers else None
            return Refused(f"{what}: {error.status}", retry_after_s(header, time.time()))
        case aiohttp.ClientResponseError():
            return ProtocolError(f"{what}: not HTTP ({type(error).__name__})")
        case aiohttp.ClientError() | ConnectionError() | ssl.SSLError():
            return ResponseLost(f"{what}: connection lost ({type(error).__name__})")
    return None


async def raise_for_status(response: aiohttp.ClientResponse, what: str, has_session: bool, url: str) -> None:
    status = response.status
    where = f"{what} on {origin(url)}: {status}"
    if 300 <= status < 400:
        goal = response.headers.get("Location", "")
        if (elsewhere := _elsewhere(url, goal)) is not None:
            raise UnsafeOrigin(f"{where}, a redirect to {elsewhere}, which was not followed")
        raise ProtocolError(f"{where}, a redirect, which was not followed")
    detail = _detail(await _read_some(response))
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


def _elsewhere(url: str, goal: str) -> str | None:
    """Target of a redirect to another origin; None for the same origin."""
    try:
        place = origin(urljoin(url, goal))
    except (ValueError, XpError):  # another scheme, no host, no legal port
        return "what is no http(s) URL"
    return None if place == origin(url) else place


async def _read_some(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.read(MAX_ERROR_BYTES)
    except aiohttp.ClientError:
        return b""


def _detail(body: bytes) -> str:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    detail = value.get("detail") if isinstance(value, dict) else None
    return valid_text(str(detail))[:300] if detail is not None else ""
