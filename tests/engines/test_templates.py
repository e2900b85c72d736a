"""The chat templates that vLLM's package ships, held against the check of every model's template."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tests.support.sections import chat_model
from tests.support.tiny import tokenizer_and_model
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.spec.model import Model, ToolsPrompt
from xp.tasks.template_check import PROBE_TOOLS, examine

vllm = pytest.importorskip("vllm", reason="vLLM is not here: make test-vllm")
TEMPLATES = sorted(
    (Path(vllm.__file__).parent / "transformers_utils/chat_templates").glob("*.jinja")
)
WITH_ROLES = {"template_chatml", "template_minicpmv45"}
"""Templates among them for a conversation of text; the others drop roles, or want pictures or sound."""


SHOW_TOOLS = {"template_minicpmv45"}
"""Templates among them that tell the model of its tools."""


def tokens(template: Path, chat: Model | None = None) -> ChatTokens:
    tokenizer = copy.deepcopy(tokenizer_and_model()[0])
    tokenizer.chat_template = template.read_text()
    tokenizer.add_special_tokens({"bos_token": "<|bos|>"})
    return ChatTokens(tokenizer, chat)


def test_the_package_still_ships_templates() -> None:
    assert {path.stem for path in TEMPLATES} >= WITH_ROLES


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_that_loses_the_tools_is_refused(template: Path) -> None:
    faults = examine(tokens(template)).faults
    assert (faults == ()) == (template.stem in SHOW_TOOLS), faults


@pytest.mark.parametrize("name", sorted(WITH_ROLES))
def test_tools_written_by_xp_reach_the_model(name: str) -> None:
    (template,) = (path for path in TEMPLATES if path.stem == name)
    chat = tokens(template, chat_model(tools_prompt=ToolsPrompt.SYSTEM))
    assert examine(chat).faults == ()
    opening = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="Where is the key?"),
    ]
    text = chat.rendered(opening, json.dumps(PROBE_TOOLS))
    assert text.index("Be brief.") < text.index("look_around") < text.index("Where is the key?")
