"""verifiers' own rollouts, without anything of xp's: by its `null` harness and an endpoint that says scripted messages.

Run in the Python that has verifiers, with `uv` on the path. Reads `{"config": ..., "seat": ..., "user": ...,
"scripts": [[index, messages], ...]}` from standard input and prints the rewards as JSON. `user` are the messages of a
simulated user.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from verifiers.v1.clients import EvalClientConfig, ModelContext
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

os.environ["OWN_KEY"] = "own"
Message = dict[str, Any]


def completion(message: Message, body: dict[str, Any], kind: str, field: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        field: message,
        "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
    }
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    return {
        "id": "own",
        "object": kind,
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": usage,
    }


async def endpoint(write: Callable[[web.Request, dict[str, Any]], Message]) -> str:
    """The URL of a server whose model writes what it is told."""

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        message = write(request, body)
        if not body.get("stream"):
            return web.json_response(completion(message, body, "chat.completion", "message"))
        calls = [
            {"index": number, **call} for number, call in enumerate(message.get("tool_calls", ()))
        ]
        event = completion(
            message | ({"tool_calls": calls} if calls else {}),
            body,
            "chat.completion.chunk",
            "delta",
        )
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        return reply

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}/v1"


async def main(given: dict[str, Any]) -> list[float]:
    said = given.get("user") or []
    user = await endpoint(lambda _, body: {"role": "assistant", "content": said[turns_of(body)]})
    config = json.loads(json.dumps(given["config"]).replace("USER_URL", user))
    environment = load_environment(resolve_env_config(config))
    tasks = list(environment.taskset)
    scripts = dict[str, Iterator[Message]]()
    url = await endpoint(lambda request, _: next(scripts[request.headers["X-Session-ID"]]))
    context = ModelContext(
        model="own", client=EvalClientConfig(base_url=url, api_key_var="OWN_KEY")
    )
    rewards = []
    async with environment.serving():
        for index, messages in given["scripts"]:

            def minted(trace: Any, messages: list[Message] = messages) -> None:
                scripts[trace.id] = iter(messages)

            episode = await environment.run_episode(tasks[index], context, on_trace=minted)
            errors = [error.message for trace in episode.traces for error in trace.errors]
            assert episode.ok, errors or [error.message for error in episode.errors]
            rewards += [
                trace.reward for trace in episode.traces if trace.agent.name == given["seat"]
            ]
    return rewards


def turns_of(body: dict[str, Any]) -> int:
    """Messages that the model of a request has written so far."""
    return sum(message["role"] == "assistant" for message in body["messages"])


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
