"""Dialogues in the forms that people store: what a row says is in the tokens and the loss, or the row is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_of
from tests.support.demonstrations import RULE
from tests.support.tables import rows
from xp.episode.tokens import ChatTokens
from xp.errors import XpError
from xp.spec.dialect import Dialect
from xp.worker.demonstrations import chosen, rendered
from xp.worker.dialogues import of_messages

ASK = {"role": "user", "content": "2+2?"}
GOOD = {"role": "assistant", "content": "GOOD 4"}


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


@pytest.mark.parametrize(("row", "expected"), rows("dialogues", "trained"))
def test_a_row_is_trained_as_the_tools_that_write_it_mean_it(
    row: str, expected: list[str], tmp_path: Path
) -> None:
    whole, text = trained(tmp_path, json.loads(row))
    assert [text.replace("\n", r"\n")] == expected
    assert "# Tools" in whole or "add" not in row


def test_a_system_text_is_in_the_prompt(tmp_path: Path) -> None:
    whole, _ = trained(tmp_path, {"system": "BE BRIEF", "messages": [ASK, GOOD]})
    assert whole.startswith("<|im_start|>system\nBE BRIEF")


@pytest.mark.parametrize(("row", "named"), rows("dialogues", "refused"))
def test_what_is_not_read_is_refused_by_its_name(
    row: str, named: list[str], tmp_path: Path
) -> None:
    with pytest.raises(XpError, match="row 1") as caught:
        read(tmp_path, json.loads(row))
    assert named[0] in str(caught.value)


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
    first, *others = read(
        tmp_path, *answers, {"messages": [{"role": "user", "content": "no"}, GOOD]}
    )
    assert [one.task_id == first.task_id for one in others] == [True] * 5 + [False]
