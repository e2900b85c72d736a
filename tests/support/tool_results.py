"""A chat model whose tools xp writes into the prompt, and results of tools."""

from __future__ import annotations

from tests.support.sections import chat_model
from xp.envs.base import Message
from xp.spec.dialect import ToolsPrompt

BY_XP = chat_model(tools_prompt=ToolsPrompt.SYSTEM)
RESULTS = [
    Message(role="tool", content="A table.", name="look_around", tool_call_id="call00003"),
    Message(role="tool", content="A chair.", name="list_rooms", tool_call_id="call00004"),
]
