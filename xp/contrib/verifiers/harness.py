"""Chat loop of verifiers' rollouts within the process; verifiers' `null` harness would start a program per rollout.

As in every harness, model calls go through the rollout's endpoint, and tool calls to its servers.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
import verifiers.v1 as vf
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["InProcessChat"]

NAME: Final = "xp_chat"
"""Name in verifiers' configurations: a top-level module."""
sys.modules[NAME] = sys.modules[__name__]


class InProcessChatConfig(HarnessConfig):  # type: ignore[misc]
    """Configuration without further fields."""


class InProcessChat(vf.Harness[InProcessChatConfig]):  # type: ignore[misc]
    """See verifiers.v1.harness.Harness."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Runs the conversation until a message without a tool call, or until the rollout refuses a turn."""
        system, prompt = self.resolve_prompt(data)
        if system:
            messages = [{"role": "system", "content": system}]
        else:
            messages = []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        servers = {
            name: {"url": url, "timeout": self.config.tool_timeout}
            for name, url in mcp_urls.items()
        }
        headers = {"Authorization": f"Bearer {secret}"}
        async with AsyncExitStack() as stack:
            # A turn takes as long as the rollout lets it; the session that waits for it has the limits of the episode.
            client = await stack.enter_async_context(
                httpx.AsyncClient(headers=headers, timeout=None)
            )
            tools = await connect_mcp({"mcpServers": servers}, stack)
            chat = _Chat(client, endpoint, tool_interception_url, ctx.model, tools)
            return await chat.run(messages)


class _Chat:
    """One segment of a conversation."""

    def __init__(
        self, client: httpx.AsyncClient, endpoint: str, gate: str | None, model: str, tools: Any
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._gate = gate
        self._model = model
        self._schemas, self._dispatch, self._servers = tools

    async def run(self, messages: list[dict[str, Any]]) -> ProgramResult:
        while True:
            body: dict[str, Any] = {"model": self._model, "messages": messages}
            if self._schemas:
                body["tools"] = self._schemas
            reply = await self._client.post(f"{self._endpoint}/chat/completions", json=body)
            if reply.status_code != 200:
                # Expected if the rollout has stopped; otherwise the reply's text is the error.
                return ProgramResult(1, "", reply.text)
            message = reply.json()["choices"][0]["message"]
            messages.append({name: value for name, value in message.items() if value is not None})
            if not message.get("tool_calls"):
                return ProgramResult(0, "", "")
            for call in message["tool_calls"]:
                messages.append(await self._result(call))

    async def _result(self, call: dict[str, Any]) -> dict[str, Any]:
        name = call["function"]["name"]
        arguments = json.loads(call["function"]["arguments"])
        if self._gate is not None:
            request = {"tool_call_id": call["id"], "name": name, "arguments": arguments}
            decision = (await self._client.post(self._gate, json=request)).raise_for_status().json()
            if decision["action"] == "stop":
                raise RuntimeError(decision["reason"])
            if decision["action"] == "deny":
                return dict(bound_tool_message(decision["message"]))
        content = await call_mcp(self._servers, self._dispatch, name, arguments)
        return dict(
            bound_tool_message(
                {"role": "tool", "tool_call_id": call["id"], "content": content, "name": name}
            )
        )
