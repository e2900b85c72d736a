"""State of an OpenEnv provider in one process: its connections, the server's schema, and the calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any

from xp.envs import openenv_wire as wire
from xp.envs.base import EnvFault, ProtocolError, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.envs.openenv_socket import Socket, client_of, connect
from xp.envs.ors_http import Repeat, Transport
from xp.envs.target import Target, origin
from xp.envs.wire import parsed


class Core:
    """State of a provider in one process; coroutines run on the process's loop and raise EnvFault only."""

    def __init__(self, target: Target, config: EnvConfig) -> None:
        self.pid = os.getpid()
        self.limits = config.limits
        self.slots = threading.Semaphore(config.limits.max_sessions)
        self._target = target
        self._transport = Transport(target, config.limits.max_attempts)
        self._schema: Any = None
        self._mcp_tools: tuple[ToolSpec, ...] | None = None
        self._client: Any = None
        self._open: set[Socket] = set()

    async def schema(self) -> Any:
        if self._schema is None:
            deadline = asyncio.get_running_loop().time() + self.limits.create_timeout_s
            body = await self._transport.request("GET", "/schema", deadline=deadline, repeat=Repeat.QUESTION)
            self._schema = await parsed(body, "GET /schema")
        return self._schema

    async def open(self, reset: Mapping[str, Any]) -> tuple[Socket, ToolResult]:
        """Opens a session and resets it. A session is its connection, so that a failed one leaves nothing on the
        server."""
        deadline, attempt = asyncio.get_running_loop().time() + self.limits.create_timeout_s, 0
        while True:
            attempt += 1
            try:
                return await self._open_once(reset, deadline)
            except EnvFault as fault:
                await self._transport.pause(Repeat.OPENING, fault, attempt, deadline)

    async def _open_once(self, reset: Mapping[str, Any], deadline: float) -> tuple[Socket, ToolResult]:
        self._transport.check_open()
        if self._client is None:
            self._client = client_of(self._target)
        socket = await connect(self._client, self._target, deadline)
        try:
            kind, data = await socket.ask("reset", reset, deadline)
            # The reward of a reset counts for nothing, so a NaN there is no fault.
            seen = self._result((kind, {**data, "reward": None} if isinstance(data, Mapping) else data), "reset")
            if seen.is_call_error:
                raise ProtocolError(f"reset on {origin(self._target.url)}: {seen.text}")
        except BaseException:
            await socket.close()
            raise
        self._open.add(socket)
        return socket, seen

    async def tools(self, socket: Socket) -> tuple[ToolSpec, ...]:
        """The action model as one tool, or the environment's MCP tools."""
        step = wire.step_tool(await self.schema(), "GET /schema")
        if step is not None:
            return (step,)
        if self._mcp_tools is None:
            deadline = asyncio.get_running_loop().time() + self.limits.create_timeout_s
            question = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
            kind, data = await socket.ask("mcp", question, deadline)
            if kind != "mcp" or not isinstance(data, Mapping):
                raise ProtocolError(f"tools/list on {origin(self._target.url)}: an answer of type {kind!r}")
            self._mcp_tools = wire.mcp_tools(data, "tools/list")
        return self._mcp_tools

    async def call(self, socket: Socket, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        tools = await self.tools(socket)
        if name not in {tool.name for tool in tools}:
            return ToolResult(f"{name!r} is no tool here, only {', '.join(t.name for t in tools)}", is_call_error=True)
        is_step = wire.step_tool(self._schema, "GET /schema") is not None
        action = arguments if is_step else {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        deadline = asyncio.get_running_loop().time() + self.limits.call_timeout_s
        return self._result(await socket.ask("step", action, deadline), f"step {name}")

    async def end(self, socket: Socket) -> None:
        self._open.discard(socket)
        try:
            await socket.close()
        finally:
            self.slots.release()

    async def close(self) -> None:
        await self._transport.close()  # First, so that no session is opened meanwhile.
        await asyncio.gather(*(socket.close() for socket in list(self._open)), return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    def _result(self, answer: tuple[str, Any], what: str) -> ToolResult:
        kind, data = answer
        what = f"{what} on {origin(self._target.url)}"
        if kind == "error":
            return wire.refusal(data, what)
        if kind != "observation" or not isinstance(data, Mapping):
            raise ProtocolError(f"{what}: an answer of type {kind!r}")
        return wire.observed(data, what)
