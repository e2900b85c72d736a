"""The model of inspect_ai's samples: each request goes to the sample's session."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from inspect_ai.log._samples import sample_active
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from inspect_ai.util import LimitExceededError

from xp.contrib.conversation import ModelRequest

NAME: Final = "xp"
POLICY: Final = f"{NAME}/policy"
"""Name of the trained model in inspect_ai."""


@dataclass
class _Conversation:
    """A sample that is being played."""

    questions: asyncio.Queue[ModelRequest]
    max_turns: int
    num_turns: int = 0
    waiting: asyncio.Future[dict[str, Any]] | None = None


class Conversations:
    """The sessions of this process by id and epoch of their sample; all methods run on one event loop."""

    def __init__(self) -> None:
        self._live: dict[tuple[Any, int], _Conversation] = {}

    def expect(
        self, key: tuple[Any, int], questions: asyncio.Queue[ModelRequest], max_turns: int
    ) -> None:
        """Sends requests of a sample to a queue from now on."""
        self._live[key] = _Conversation(questions, max_turns)

    def forget(self, key: tuple[Any, int]) -> None:
        """Ends a sample: its request fails, and inspect_ai then cleans up the sample."""
        conversation = self._live.pop(key, None)
        if (
            conversation is not None
            and conversation.waiting is not None
            and not conversation.waiting.done()
        ):
            conversation.waiting.set_exception(RuntimeError("the session is closed"))

    async def ask(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The model's next message in the current sample."""
        active = sample_active()
        if active is None:
            raise RuntimeError("the trained model was asked outside of a sample")
        key = (active.sample.id, active.epoch)
        conversation = self._live.get(key)
        if conversation is None:
            raise RuntimeError("the session is closed")
        if conversation.num_turns >= conversation.max_turns:
            limit = conversation.max_turns
            raise LimitExceededError(
                "turn", value=limit, limit=limit, message=f"env.max_turns={limit}"
            )
        conversation.num_turns += 1
        conversation.waiting = asyncio.get_running_loop().create_future()
        await conversation.questions.put(
            ModelRequest(str(key), messages, tools, conversation.waiting)
        )
        return await conversation.waiting


conversations: Final = Conversations()


@modelapi(name=NAME)
class XpModel(ModelAPI):  # type: ignore[misc]
    """See inspect_ai.model.ModelAPI. Trainer or evaluation sample the tokens; the configuration is not used."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        at_once: int = 1,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        self._at_once = at_once

    def max_connections(self) -> int:
        return self._at_once

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        offered = [
            {
                "function": tool.model_dump(
                    mode="json", include={"name", "description", "parameters"}, exclude_none=True
                )
            }
            for tool in tools
        ]
        message = await conversations.ask([_wire(message) for message in input], offered)
        output = ModelOutput.from_content(self.model_name, message["content"] or "")
        calls = message.get("tool_calls")
        if calls:
            output.choices[0].stop_reason = "tool_calls"
            output.choices[0].message.tool_calls = [_tool_call(call) for call in calls]
        return output


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(
        id=call["id"], function=function["name"], arguments=json.loads(function["arguments"])
    )


def _wire(message: ChatMessage) -> dict[str, Any]:
    """A message in the form of chat completions, with the parts that the model reads."""
    is_tool = isinstance(message, ChatMessageTool)
    content: Any = message.content
    if is_tool and message.error is not None:
        content = f"Error: {message.error.message}"
    if not isinstance(content, str):
        parts = [part for part in content if part.type != "reasoning"]
        content = [
            {"type": "text", "text": part.text} if part.type == "text" else {"type": part.type}
            for part in parts
        ]
    wired = {"role": message.role, "content": content}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        wired["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if is_tool:
        wired |= {"name": message.function, "tool_call_id": message.tool_call_id}
    return wired
