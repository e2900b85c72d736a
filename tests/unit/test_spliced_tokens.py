"""Tokens of prompts and of replies after a sampled turn against Prime Intellect's `renderers`, which has its own rules.

`make test-renderers` runs it.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip(
    "renderers", reason="the package `renderers` is not installed: make test-renderers"
)

from tests.support.chat_templates import tokenizer_of
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens

MODELS = {
    "qwen3": "qwen3.Qwen3",
    "qwen3_vl": "qwen3_vl.Qwen3VL",
    "qwen3_5_think": "qwen35.Qwen35",
    "glm4moe": "glm45.GLM45",
    "llama3_1": "llama_3.Llama3",
    "nemotron_3_nano": "nemotron3.Nemotron3",
    "nemotron_3_ultra": "nemotron3.Nemotron3Ultra",
}
"""A template of TRL's -> the module and the class of its renderer."""
TAGS = ("think", "tool_call", "tool_response", "arg_key", "arg_value")
TOKENS = [
    "[gMASK]",
    "<sop>",
    "<|begin_of_text|>",
    *(f"<{slash}{tag}>" for tag in TAGS for slash in ("", "/")),
]
"""Tokens that the renderers look up, and the small tokenizers of the tests lack."""


def renderer_of(name: str, tokenizer: Any) -> Any:
    """The renderer that keeps all thinking, as the policy's own tokens do."""
    from importlib import import_module

    module, _, kind = MODELS[name].partition(".")
    config = getattr(import_module("renderers.configs"), f"{kind}RendererConfig")(
        thinking_retention="all"
    )
    return getattr(import_module(f"renderers.{module}"), f"{kind}Renderer")(tokenizer, config)


@pytest.mark.parametrize("name", MODELS)
def test_prompts_and_replies_have_the_tokens_of_another_library(name: str) -> None:
    tokenizer = tokenizer_of(name)
    tokenizer.add_tokens(TOKENS)
    if name.startswith("llama"):
        tokenizer.bos_token = "<|begin_of_text|>"
    chat = ChatTokens(tokenizer)
    renderer = renderer_of(name, tokenizer)
    opening = Message(role="user", content="Find it.")
    prompt = chat.prompt([opening], "[]")
    assert prompt == renderer.render_ids([dict(opening)], add_generation_prompt=True)
    # The white space of thinking and calls is not the one with which a template would render them again.
    sampled = chat.turn("<think>\nSo  1.\n</think>\n\n\nThen 2.", is_call=False)
    for reply in (
        Message(role="user", content="Result 0."),
        Message(role="tool", name="bash", tool_call_id="c1", content="out"),
    ):
        expected = renderer.bridge_to_next_turn(prompt, sampled, [dict(reply)])
        assert [
            *prompt,
            *sampled,
            *chat.reply([reply], last_id=sampled[-1]),
        ] == list(expected.token_ids)
