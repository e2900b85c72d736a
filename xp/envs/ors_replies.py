"""Reads an ORS server's answers, with a largest size: a whole body, or the events of a tool call up to its result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import aiohttp

from xp.envs.base import NotOffered, ProtocolError, ResponseLost, ToolCrashed
from xp.envs.sse import EventReader

MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
"""Largest size, in bytes, of an answer about one session or environment: a prompt, tools, a tool's result."""
SILENCE_S: Final = 25.0
"""Seconds without an event after which a call is resumed, if possible; servers send a comment every 10 s."""
DRAIN_S: Final = 0.2
EVENTS: Final = "text/event-stream"


async def read_body(response: aiohttp.ClientResponse, limit: int, what: str) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > limit:
            raise NotOffered(f"{what}: the answer is longer than {limit} bytes")
    return bytes(body)


async def read_result(response: aiohttp.ClientResponse, what: str, progress: list[str], is_resumed: bool) -> str:
    """Reads events up to `end` and joins the result's pieces."""
    if response.content_type != EVENTS:
        raise ProtocolError(f"{what}: the answer is {response.content_type[:60]!r}, not an event stream")
    reader, pieces, size = EventReader(), list[str](), 0
    while True:
        try:
            async with asyncio.timeout(SILENCE_S if progress else None):
                piece = await response.content.readany()
        except TimeoutError:
            raise ResponseLost(f"{what}: {SILENCE_S:g} s of silence") from None
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise ProtocolError(f"{what}: the answer is longer than {MAX_REPLY_BYTES} bytes")
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
                    await _finish(response)
                    return "".join(pieces)
            elif name == "error":
                if is_resumed and data == "unknown task_id":
                    raise ProtocolError(f"{what}: the server has forgotten the call that was to be resumed")
                raise ToolCrashed(f"{what}: {data[:500]}")


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Reads the rest of an answer whose result is known, so that its connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass
