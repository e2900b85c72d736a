"""Sessions of an ORS server, as coroutines on the process's loop: opening, keep-alive, calls, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from xp.envs import wire
from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    Message,
    ProtocolError,
    ResponseLost,
    SessionLost,
    Task,
    ToolResult,
    ToolSpec,
)
from xp.envs.config import Limits
from xp.envs.ors_http import Repeat, Transport

T = TypeVar("T")

PING_EVERY_S: Final = 10.0
CLOSE_S: Final = 10.0
END_AGAIN_S: Final = (2.0, 10.0, 60.0, 300.0)
"""Seconds between attempts to end a session whose creation had no answer, since the server may create it later."""
Terminal = tuple[str, str | None]
"""Name and argument of an environment's terminal tool."""


@dataclass(eq=False)
class Live:
    """One open session on the server."""

    sid: str
    env: str
    touched: float
    """Time of the session's last request, on the loop's clock."""
    prompt: list[Message] = field(default_factory=list)
    tools: tuple[tuple[ToolSpec, ...], Terminal | None] | None = None
    lost: str | None = None
    in_flight: asyncio.Task[Any] | None = None


class Sessions:
    """All sessions of one provider in one process. Every coroutine runs on the process's loop and raises EnvFault only.

    Args:
        transport: connection to the server.
        limits: deadlines of the sessions.
    """

    def __init__(self, transport: Transport, limits: Limits) -> None:
        self._transport = transport
        self._limits = limits
        self._open: set[Live] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._draining = asyncio.Event()
        self._has_messages = True

    async def open(self, env: str, task: Task) -> Live:
        """Creates a session and waits until its setup is complete, so that tools can be called at once.

        A creation without an answer may have executed; the next attempt creates another session.
        """
        deadline = asyncio.get_running_loop().time() + self._limits.create_timeout_s
        attempt = 0
        while True:
            attempt += 1
            try:
                live = await self._open_once(env, task, deadline)
                break
            except ResponseLost as fault:
                await self._transport.pause(Repeat.OPENING, fault, attempt, deadline)
        self._open.add(live)
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep_alive())
        return live

    async def _open_once(self, env: str, task: Task, deadline: float) -> Live:
        progress: list[str] = []
        sid: str | None = None
        try:
            sid = await self.mint(deadline, progress)
            source = {"task_spec": dict(task.spec)} if task.spec else {"split": task.split, "index": task.index}
            body = {"env_name": env, **source}
            await self._transport.request(
                "POST", "/create", deadline=deadline, body=body, sid=sid, with_secrets=True, repeat=Repeat.CREATION
            )
            live = Live(sid, env, asyncio.get_running_loop().time())
            live.prompt = await self._prompt(live, deadline)
        except BaseException as error:
            is_answered = isinstance(error, EnvFault) and not isinstance(error, (ResponseLost, DeadlineExceeded))
            end = self._tear_down if is_answered else self._end_unanswered
            for name in {sid or "", *progress} - {""}:
                self._later(end(name))
            raise
        return live

    async def mint(self, deadline: float, progress: list[str], repeat: Repeat = Repeat.OPENING) -> str:
        """Requests the id of a new, empty session."""
        text = await self._transport.stream(
            "/create_session", deadline=deadline, body={}, with_secrets=True, progress=progress, repeat=repeat
        )
        reply = await wire.parsed(text, "POST /create_session") if text else None
        sid = reply.get("sid") if isinstance(reply, dict) else None
        return wire.string(sid or (progress[-1] if progress else None), "POST /create_session")

    async def call(self, live: Live, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        what = f"POST /{live.env}/call"
        body = {"name": name, "input": dict(arguments)}
        deadline = asyncio.get_running_loop().time() + self._limits.call_timeout_s
        work = self._transport.stream(f"/{live.env}/call", deadline=deadline, body=body, sid=live.sid, progress=[])
        text = await self._guarded(live, work)
        return wire.tool_result(await wire.parsed(text, what), what)

    async def tools(self, live: Live) -> tuple[tuple[ToolSpec, ...], Terminal | None]:
        if live.tools is None:
            deadline = asyncio.get_running_loop().time() + self._limits.create_timeout_s
            path = f"/{live.env}/task_tools"
            work = self._transport.request("GET", path, deadline=deadline, sid=live.sid, repeat=Repeat.OPENING)
            live.tools = _listing(await self._guarded(live, work), path)
        return live.tools

    def close_soon(self, live: Live) -> asyncio.Task[None]:
        """Ends the session on the server in the background."""
        self._open.discard(live)
        live.lost = live.lost or "it is closed"
        return self._later(self._tear_down(live.sid))

    def end(self, sid: str) -> None:
        """Ends a session that has an id but was not created."""
        self._later(self._tear_down(sid))

    async def drain(self) -> None:
        """Closes all sessions and waits for the server's answers."""
        for live in list(self._open):
            self.close_soon(live)
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None
        self._draining.set()
        if self._closing:
            await asyncio.wait(self._closing, timeout=2 * CLOSE_S)

    async def _prompt(self, live: Live, deadline: float) -> list[Message]:
        if self._has_messages:
            path = f"/{live.env}/messages"
            with suppress(SessionLost):
                body = await self._transport.request(
                    "GET", path, deadline=deadline, sid=live.sid, repeat=Repeat.OPENING
                )
                return wire.messages(await wire.parsed(body, path), path)
        # Servers before 0.1.157 have no /messages; if the session is lost instead, this request fails with that.
        path = f"/{live.env}/prompt"
        body = await self._transport.request("GET", path, deadline=deadline, sid=live.sid, repeat=Repeat.OPENING)
        self._has_messages = False
        return [Message(role="user", content=wire.block_text(await wire.parsed(body, path), path))]

    async def _guarded(self, live: Live, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the session; stops when the keep-alive task finds that the server has lost it."""
        if live.lost is not None:
            work.close()
            raise SessionLost(f"session on {self._transport.target.url}: {live.lost}")
        live.touched = asyncio.get_running_loop().time()
        live.in_flight = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if live.lost is None:
                raise
            raise SessionLost(f"session on {self._transport.target.url}: {live.lost}") from None
        except SessionLost as fault:
            live.lost = str(fault)
            raise
        finally:
            live.in_flight = None

    async def _keep_alive(self) -> None:
        """Pings idle sessions; a session that the server has lost ends its current call."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_EVERY_S / 4)
            stale = [live for live in self._open if loop.time() - live.touched >= PING_EVERY_S and live.lost is None]
            for live in stale:
                live.touched = loop.time()
                self._later(self._ping(live))

    async def _ping(self, live: Live) -> None:
        deadline = asyncio.get_running_loop().time() + PING_EVERY_S
        try:
            await self._transport.request("POST", "/ping", deadline=deadline, sid=live.sid, repeat=Repeat.NOTICE)
        except SessionLost as fault:
            live.lost = live.lost or str(fault)
            if live.in_flight is not None:
                live.in_flight.cancel()
        except EnvFault:
            pass  # The next call reports an outage, if it is not over by then.

    async def _end_unanswered(self, sid: str) -> None:
        """Ends a session that the server may still create: now, after pauses, and at the latest with the provider."""
        await self._tear_down(sid)
        for pause in END_AGAIN_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause)
            await self._tear_down(sid)
            if self._draining.is_set():
                break

    async def _tear_down(self, sid: str) -> None:
        deadline = asyncio.get_running_loop().time() + CLOSE_S
        for path in ("/delete", "/delete_session"):
            with suppress(EnvFault):
                await self._transport.request("POST", path, deadline=deadline, sid=sid, repeat=Repeat.NOTICE)

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task


@lru_cache(maxsize=256)
def _listing(body: bytes, path: str) -> tuple[tuple[ToolSpec, ...], Terminal | None]:
    """Parses the tools of an answer; cached, since most tasks of an environment have the same."""
    return wire.tools(wire.parse_json(body, path), path)


def checked_index(task: Task) -> None:
    if task.index < 0:
        raise ProtocolError(f"task {task.id}: a negative index; the server would take it for the last task")
