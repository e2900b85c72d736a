"""Dialogues in the forms that people store: what a row says is in the tokens and the loss, or the row is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_of
from tests.support.demonstrations import RULE
from xp.episode.tokens import ChatTokens
from xp.errors import XpError
from xp.spec.dialect import Dialect
from xp.worker.demonstrations import chosen, rendered
from xp.worker.dialogues import of_messages

ADD = {
    "name": "add",
    "description": "",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
ASK, WRONG, NO, GOOD = (
    {"role": role, "content": text}
    for role, text in (
        ("user", "2+2?"),
        ("assistant", "WRONG 5"),
        ("user", "no"),
        ("assistant", "GOOD 4"),
    )
)


def read(tmp_path: Path, *rows: Any, thinking: bool = False) -> list[Any]:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return list(of_messages(str(file), thinking=thinking))


def trained(tmp_path: Path, row: Any, template: str = "qwen2_5") -> tuple[str, str]:
    """The whole text of a row's tokens, and the text with a loss."""
    chat = ChatTokens(tokenizer_of(template, tmp_path))
    counts = Counter[str]()
    best = chosen(read(tmp_path, row), RULE, frozenset(), counts)
    examples, _ = rendered(best, RULE, chat, lambda _: Dialect.HERMES, counts)
    if not examples:
        return "", next(iter(counts))
    one = examples[0]
    ids = [token for token, is_trained in zip(one.ids, one.mask, strict=True) if is_trained]
    return chat.tokenizer.decode(one.ids), chat.tokenizer.decode(ids)


CALLED = '<tool_call>\n{"name": "add", "arguments": {"n": 3}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
            "yo<|im_end|>",
        ),
        ({"instruction": "Say yo.", "input": "now", "output": "yo"}, "yo<|im_end|>"),
        ({"instruction": "b", "output": "yo", "history": [["a", "x"]]}, "x<|im_end|>yo<|im_end|>"),
        ({"prompt": [ASK, WRONG, NO], "completion": [GOOD]}, "GOOD 4<|im_end|>"),
        ({"messages": [ASK, WRONG | {"train": False}, NO, GOOD]}, "GOOD 4<|im_end|>"),
        (
            {"messages": [ASK, WRONG | {"loss_weight": 0.0}, NO, GOOD | {"loss_weight": 1.0}]},
            "GOOD 4<|im_end|>",
        ),
        ({"messages": [ASK, WRONG, NO, GOOD], "loss_mask": [0, 0, 0, 1]}, "GOOD 4<|im_end|>"),
        ({"messages": [ASK, WRONG, NO, GOOD], "weight": 0}, "without a turn to learn"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "go"},
                    {"from": "function_call", "value": '{"name": "add", "arguments": {"n": 3}}'},
                    {"from": "observation", "value": "ok"},
                    {"from": "gpt", "value": "done"},
                ],
                "tools": json.dumps([ADD]),
            },
            f"{CALLED}done<|im_end|>",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "go"},
                    {
                        "role": "assistant",
                        "content": "",
                        "function_call": {"name": "add", "arguments": '{"n": 3}'},
                    },
                    {"role": "function", "name": "add", "content": "ok"},
                ],
                "functions": [ADD],
            },
            CALLED,
        ),
    ],
)
def test_a_row_is_trained_as_the_tools_that_write_it_mean_it(
    row: Any, expected: str, tmp_path: Path
) -> None:
    whole, text = trained(tmp_path, row)
    assert text == expected
    assert not whole or "add" not in json.dumps(row) or "# Tools" in whole


def test_a_system_text_is_in_the_prompt(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path, {"system": "BE BRIEF", "messages": [ASK, GOOD]})
    assert whole.startswith("<|im_start|>system\nBE BRIEF")


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": [ASK, GOOD | {"weight": 0.5}]}, "`weight` is 0.5"),
        ({"messages": [ASK, GOOD | {"train": "no"}]}, "`train` is 'no'"),
        ({"messages": [ASK | {"train": True}, GOOD]}, "role user cannot be trained on"),
        ({"messages": [ASK, GOOD | {"annotation": "text"}]}, "`annotation`"),
        ({"messages": [ASK, GOOD], "rejected": "x"}, "`rejected`"),
        ({"messages": [{"role": "narrator", "content": "x"}, GOOD]}, "'narrator'"),
        (
            {"messages": [ASK, GOOD, {"role": "tool", "content": "x", "tool_call_id": "b"}, GOOD]},
            "answers no call",
        ),
        ({"text": "a whole document"}, "`conversations`"),
    ],
)
def test_what_is_not_read_is_refused_by_its_name(row: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(XpError, match="row 1") as caught:
        read(tmp_path, row)
    assert named in str(caught.value)


@pytest.mark.parametrize(("template", "at"), [("qwen3", 0), ("qwen3", 1), ("gptoss", 1)])
def test_the_text_of_a_special_token_begins_and_ends_no_turn(
    template: str, at: int, tmp_path: Path
) -> None:
    end = ChatTokens(tokenizer_of(template, tmp_path)).ends.texts[0]
    messages = [ASK, GOOD]
    messages[at] = {**messages[at], "content": f"What does {end} mean?"}
    assert trained(tmp_path, {"messages": messages}, template) == (
        "",
        f"with {end} in a text, which would be a special token",
    )


def test_a_text_that_the_template_drops_is_counted(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen2_5", tmp_path)
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n"
        "{% if message.role == 'assistant' %}{{ message.content }}{% endif %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    counts = Counter[str]()
    best = chosen(read(tmp_path, {"messages": [ASK, GOOD]}), RULE, frozenset(), counts)
    examples, _ = rendered(best, RULE, ChatTokens(tokenizer), lambda _: Dialect.HERMES, counts)
    assert not examples
    assert "it leaves out a text of the role user" in next(iter(counts))


def test_rows_of_one_question_are_one_task(tmp_path: Path) -> None:
    answers = [
        {"messages": [ASK, {"role": "assistant", "content": f"{number}"}], "id": number}
        for number in range(6)
    ]
    first, *others = read(tmp_path, *answers, {"messages": [NO, GOOD]})
    assert [one.task_id == first.task_id for one in others] == [True] * 5 + [False]
