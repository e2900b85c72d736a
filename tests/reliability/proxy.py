"""A proxy before a real ORS server that breaks the exchanges it is told to break, in the ways that networks do."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from xp.envs.local_server import LocalServer
from xp.lib.loopback import free_ports

EVENT_STREAM = "text/event-stream"


@dataclass
class Exchange:
    """One request that a client has sent, and the way to answer it."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    upstream: LocalServer
    to_upstream: asyncio.StreamWriter | None = None

    async def execute(self) -> asyncio.StreamReader:
        """Send the request to the real server; the answer can be read from what is returned."""
        place = urlsplit(self.upstream.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        own = {"host": place.netloc}
        headers = {**self.headers, **own, "x-api-key": self.upstream.key, "connection": "close"}
        lines = [
            f"{self.method} {self.path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + self.body)
        await writer.drain()
        self.to_upstream = writer  # A StreamWriter that is collected closes its connection.
        return reader

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(
        self,
        status: int,
        body: bytes = b"{}",
        kind: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        lines = [
            f"HTTP/1.1 {status} x",
            f"content-type: {kind}",
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        await self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def reset(self) -> None:
        self.writer.transport.abort()


HEAD = b"\r\n\r\n"
"""Ends an answer's head."""
EVENT = b"\r\n\r\n\r\n"
"""Ends the first event of a chunked answer."""
Fault = Callable[[Exchange], Awaitable[None]]


@dataclass
class Injected:
    path: str
    fault: Fault
    times: int
    skip: int
    until: float = math.inf
    """On the monotonic clock."""


@dataclass
class FaultProxy:
    """Listens on 127.0.0.1 and passes everything on to `upstream`, but for what `inject` says."""

    upstream: LocalServer
    seen: list[Exchange] = field(default_factory=list)
    _injected: list[Injected] = field(default_factory=list)

    def __enter__(self) -> FaultProxy:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        # Nobody else is given this port while `refuse_for` has left it.
        start = asyncio.start_server(self._serve, "127.0.0.1", free_ports(1, "127.0.0.1")[0])
        self._server = asyncio.run_coroutine_threadsafe(start, self._loop).result(250)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        async def stop() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(250)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(250)
        self._loop.close()

    def inject(self, path: str, fault: Fault, times: int = 1, skip: int = 0) -> None:
        """Break the next `times` exchanges whose path ends in `path`, after `skip` of them have passed."""
        self._injected.append(Injected(path, fault, times, skip))

    def outage(self, seconds: float, fault: Fault, path: str = "") -> None:
        """Break every exchange whose path ends in `path`, from now on for so long."""
        self._injected.append(Injected(path, fault, 10**9, 0, time.monotonic() + seconds))

    def refuse_for(self, seconds: float) -> None:
        """Refuse connections for so long, and end those that are open, as a server does that is deployed again."""
        if not self._server.is_serving():
            return  # it is away already
        port = self._server.sockets[0].getsockname()[1]

        async def away() -> None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()

        async def back() -> None:
            await asyncio.sleep(seconds)
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)

        asyncio.run_coroutine_threadsafe(away(), self._loop).result(250)
        asyncio.run_coroutine_threadsafe(back(), self._loop)

    def requests(self, path: str) -> list[Exchange]:
        return [exchange for exchange in self.seen if exchange.path.endswith(path)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:-2])
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        exchange = Exchange(method, path, headers, body, writer, self.upstream)
        self.seen.append(exchange)
        try:
            await (self._next_fault(path) or passed_on)(exchange)
        finally:
            if exchange.to_upstream is not None:
                exchange.to_upstream.close()

    def _next_fault(self, path: str) -> Fault | None:
        for injected in self._injected:
            if path.endswith(injected.path) and time.monotonic() < injected.until:
                if injected.skip > 0:
                    injected.skip -= 1
                elif injected.times > 0:
                    injected.times -= 1
                    return injected.fault
        return None


async def passed_on(exchange: Exchange) -> None:
    answer = await exchange.execute()
    while piece := await answer.read(65536):
        await exchange.send(piece)


def status(code: int, headers: Mapping[str, str] | None = None, executed: bool = False) -> Fault:
    async def fault(exchange: Exchange) -> None:
        if executed:
            await (await exchange.execute()).read()
        await exchange.answer(code, b'{"detail": "a gateway says no"}', headers=headers)

    return fault


def reset(executed: bool) -> Fault:
    async def fault(exchange: Exchange) -> None:
        if executed:
            await (await exchange.execute()).read()
        exchange.reset()

    return fault


def closed_after_200(kind: str = EVENT_STREAM) -> Fault:
    """Execute, say 200, and end the body before its first event."""

    async def fault(exchange: Exchange) -> None:
        await (await exchange.execute()).read()
        await exchange.send(
            f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode()
        )

    return fault


async def reset_after_task_id(exchange: Exchange) -> None:
    answer = await exchange.execute()
    await exchange.send(await answer.readuntil(EVENT))
    await asyncio.sleep(0.02)
    exchange.reset()


def silent(executed: bool) -> Fault:
    """Accept the request and never answer."""

    async def fault(exchange: Exchange) -> None:
        if executed:
            await (await exchange.execute()).read()
        await asyncio.sleep(3600)

    return fault


def stalled(after: bytes, comments: bool = False) -> Fault:
    """Execute, pass the answer on up to `after`, and then nothing (or nothing but keep-alive comments)."""

    async def fault(exchange: Exchange) -> None:
        answer = await exchange.execute()
        await exchange.send(await answer.readuntil(after))
        while True:
            await asyncio.sleep(0.1)
            if comments:
                await exchange.send(b"a\r\n: ping\r\n\r\n\r\n")

    return fault


def replied(body: bytes, kind: str = "application/json", executed: bool = True) -> Fault:
    async def fault(exchange: Exchange) -> None:
        if executed:
            await (await exchange.execute()).read()
        await exchange.answer(200, body, kind)

    return fault


def streamed(result: str, executed: bool = True) -> Fault:
    """Execute, and give back `result` in place of the real result."""
    lines = result.split("\n")
    data = "\n".join(f"data: {line}" for line in lines)
    return replied(
        f"event: task_id\ndata: t\n\nevent: end\n{data}\n\n".encode(), EVENT_STREAM, executed
    )


def output(**changes: Any) -> Fault:
    """A tool's reply that is right but for `changes`; a change to `...` removes the key."""
    value = {
        "blocks": [{"type": "text", "text": "x"}],
        "metadata": None,
        "reward": 1.0,
        "finished": True,
        **changes,
    }
    kept = {name: item for name, item in value.items() if item is not ...}
    return streamed(json.dumps({"ok": True, "output": kept}))
