"""The tools of a task's own session for a program, by the Model Context Protocol over HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Final

from xp.envs.base import EnvFault, Session, ToolResult
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import parts_of

VERSION: Final = "2025-06-18"
NOT_FOUND: Final = -32601
INVALID: Final = -32600
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603


class ToolServer:
    """One session's tools; answers run on the process's loop, the session on other threads, one call after another.

    Args:
        session: the open session.
        pool: threads of sessions.
        store: the pictures of results. None means that there are none.
    """

    def __init__(self, session: Session, pool: Executor, store: PictureStore | None = None) -> None:
        self.session = session
        self._store = store
        self._pool = pool
        self._turn = asyncio.Lock()
        self.results: list[ToolResult] = []
        self.fault: EnvFault | None = None
        """Failure of the session; the episode is then void."""

    @property
    def is_over(self) -> bool:
        return bool(self.results) and self.results[-1].finished

    async def answer(self, message: Any) -> dict[str, Any] | None:
        """The answer to a message of JSON-RPC; None: there is nothing to answer."""
        if isinstance(message, dict) and "method" not in message and "id" in message:
            return None  # A client's answer to a request that was never made.
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            return _error(None, INVALID, "expected a request")
        if "id" not in message:
            return None
        number = message["id"]
        method = message["method"]
        known = {
            "initialize": self._initialize,
            "ping": _ping,
            "tools/list": self._list,
            "tools/call": self._call,
        }
        if method not in known:
            return _error(number, NOT_FOUND, f"no {method}")
        params = message.get("params") or {}
        if not isinstance(params, dict) or not isinstance(params.get("arguments") or {}, dict):
            return _error(number, INVALID_PARAMS, "params: expected an object")
        try:
            return {"jsonrpc": "2.0", "id": number, "result": await known[method](params)}
        except EnvFault as fault:
            self.fault = fault
            return _error(number, INTERNAL, str(fault))

    async def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        version = params.get("protocolVersion") or VERSION
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "xp", "version": "1"},
        }

    async def _list(self, _: Mapping[str, Any]) -> dict[str, Any]:
        tools = await asyncio.get_running_loop().run_in_executor(self._pool, self.session.tools)
        return {
            "tools": [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "inputSchema": {"type": "object", **tool.parameters},
                }
                for tool in tools
            ]
        }

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        name = str(params.get("name"))
        arguments = params.get("arguments") or {}
        async with self._turn:
            if self.is_over or self.fault is not None:
                return _result([_text("Error: the task is over.")], is_error=True)
            work = asyncio.get_running_loop().run_in_executor(
                self._pool, self.session.call, name, arguments
            )
            try:
                result = await work
            except EnvFault as fault:  # a tool's failure, which a client shows to its model
                self.fault = fault
                return _result([_text(f"Error: {fault}")], is_error=True)
            self.results.append(result)
            return _result(self._blocks(result), is_error=result.is_call_error)

    def _blocks(self, result: ToolResult) -> list[dict[str, Any]]:
        """The texts of a result, and its pictures with the bytes that the environment gave."""
        if self._store is None or not result.pictures:
            return [_text(result.text)]
        blocks = []
        for part in parts_of({"content": result.text, "pictures": result.pictures}):
            if isinstance(part, str):
                blocks.append(_text(part))
                continue
            data = base64.b64encode(self._store.data(part["sha256"])).decode()
            blocks.append({"type": "image", "data": data, "mimeType": part["media_type"]})
        return blocks


async def _ping(_: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _result(blocks: list[dict[str, Any]], *, is_error: bool) -> dict[str, Any]:
    return {"content": blocks, "isError": is_error}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _error(number: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}
