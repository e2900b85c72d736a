"""The model of verifiers' rollouts: an endpoint on 127.0.0.1 that answers with the messages of xp's sessions."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from xp.contrib.conversation import ModelRequest

KEY_VARIABLE: Final = "XP_VERIFIERS_KEY"
"""Variable, set in this process only, from which verifiers' client reads the endpoint's key."""
ROLLOUT_HEADER: Final = "X-Session-ID"
"""Header with the id of a request's trace, set by verifiers' client."""
MOST_BYTES: Final = 64 << 20


class ModelEndpoint:
    """Puts each request into the queue of its rollout; all methods run on one event loop."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(32)
        self._queues: dict[str, asyncio.Queue[ModelRequest]] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        os.environ[KEY_VARIABLE] = self._key
        app = web.Application(client_max_size=MOST_BYTES)
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def expect(self, trace: str, queue: asyncio.Queue[ModelRequest]) -> None:
        """Sends requests of a trace to a queue from now on."""
        self._queues[trace] = queue

    def forget(self, trace: str) -> None:
        self._queues.pop(trace, None)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", ""), f"Bearer {self._key}"):
            return web.Response(status=401)
        trace = request.headers.get(ROLLOUT_HEADER, "")
        queue = self._queues.get(trace)
        if queue is None:
            return web.Response(status=404, text="no such rollout")
        body = await request.json()
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        await queue.put(ModelRequest(trace, body["messages"], body.get("tools") or [], reply))
        message = await reply
        if not body.get("stream"):
            return web.json_response(_completion(message, body, "chat.completion", "message"))
        calls = [
            {"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))
        ]
        delta = message | ({"tool_calls": calls} if calls else {})
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        event = json.dumps(_completion(delta, body, "chat.completion.chunk", "delta"))
        await stream.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())
        return stream


def _completion(
    message: Mapping[str, Any], body: Mapping[str, Any], kind: str, field: str
) -> dict[str, Any]:
    if message.get("tool_calls"):
        reason = "tool_calls"
    else:
        reason = "stop"
    return {
        "id": f"xp-{secrets.token_hex(8)}",
        "object": kind,
        "created": int(time.time()),
        "model": body["model"],
        "choices": [{"index": 0, field: dict(message), "finish_reason": reason}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
