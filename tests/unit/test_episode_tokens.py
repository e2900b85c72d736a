"""Between messages and tokens: what comes after a turn, by the chat templates that the models really have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_with
from tests.support.sections import chat_model
from xp.envs.base import Message
from xp.episode.tokens import ChatTokens
from xp.worker.engines.rows import _new_prompt


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "qwen3_instruct_2507"])
@pytest.mark.parametrize("role", ["tool", "user"])
def test_a_reply_opens_the_next_turn_in_any_template(template: str, role: str) -> None:
    tokenizer = tokenizer_with(template)
    chat = ChatTokens(tokenizer)
    text = tokenizer.decode(
        chat.reply([Message(role=role, content="found it")], last_id=chat.end_id)
    )
    assert text.startswith("\n<|im_start|>user\n")
    assert "found it" in text
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_cut_turn_is_ended_by_the_environment() -> None:
    chat = ChatTokens(tokenizer_with("qwen3"))
    message = [Message(role="tool", content="found it")]
    assert chat.reply(message, last_id=None) == [
        chat.end_id,
        *chat.reply(message, last_id=chat.end_id),
    ]


def test_without_thinking_every_turn_begins_after_an_empty_thought() -> None:
    tokenizer = tokenizer_with("qwen3")
    chat = ChatTokens(tokenizer, chat_model(chat_template={"enable_thinking": False}))
    opening = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizer.decode(chat.prompt([Message(role="user", content="hi")], "[]")).endswith(
        opening
    )
    assert tokenizer.decode(
        chat.reply([Message(role="tool", content="found")], last_id=chat.end_id)
    ).endswith(opening)


def test_where_a_template_only_appends_the_parts_are_the_whole() -> None:
    tokenizer = tokenizer_with("qwen2_5")
    chat = ChatTokens(tokenizer)
    opening = [Message(role="user", content="where?")]
    said = [Message(role="assistant", content="there"), Message(role="tool", content="no")]
    parts = [
        *chat.prompt(opening, "[]"),
        *tokenizer("there", add_special_tokens=False)["input_ids"],
        chat.end_id,
        *chat.reply(said[1:], last_id=chat.end_id),
    ]
    assert tokenizer.decode(parts) == tokenizer.decode(chat.prompt([*opening, *said], "[]"))


def test_thinking_that_a_template_leaves_out_does_not_make_a_new_prompt_too_long() -> None:
    messages = [
        Message(role="user", content="where?"),
        Message(role="assistant", content=f"<think>{'x' * 70_000}</think>there"),
        Message(role="user", content="and now?"),
    ]
    reply: Any = SimpleNamespace(messages=messages, tools="[]")
    sampling: Any = SimpleNamespace(max_prompt_tokens=1024)
    row = _new_prompt(ChatTokens(tokenizer_with("qwen3")), reply, sampling)
    assert row is not None
    assert len(row.prompt_ids) < 100
