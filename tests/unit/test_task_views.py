"""What each trainer reads is made from the one canonical set."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.support.sections import chat_model
from tests.support.view_rows import TOOLS, row
from xp.backends.skyrl.worker import train as skyrl
from xp.backends.slime.worker import train as slime
from xp.episode.tokens import ChatTokens
from xp.spec.dialect import Dialect, ToolsPrompt


def test_skyrls_prompt_is_a_list_of_messages_and_names_its_task(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    skyrl.write_view(map(row, range(3)), tmp_path / "train.parquet")
    found = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert found[1]["prompt"] == [dict(message) for message in row(1).messages]
    assert {line["env_class"] for line in found} == {"xp"}
    assert [line["task_id"] for line in found] == ["a/train/0", "a/train/1", "a/train/2"]


def test_slimes_metadata_is_an_object(tmp_path: Path) -> None:
    slime.write_view(map(row, range(3)), tmp_path / "train.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert lines[2]["metadata"] == {
        "task_id": "a/train/2",
        "env": "a",
        "split": "train",
        "index": 2,
    }
    assert lines[2]["input"][1]["content"] == "task 2\n"
    assert lines[2]["tools"] == json.loads(TOOLS)


@dataclass
class Tokenizer:
    """The parts of a fast tokenizer that determine its digest."""

    vocabulary: str
    chat_template: str
    eos_token: str = "</s>"
    eos_token_id: int = 0

    @property
    def backend_tokenizer(self) -> Tokenizer:
        return self

    def to_str(self) -> str:
        return self.vocabulary


def test_a_tokenizers_digest_follows_its_vocabulary_and_its_template() -> None:
    tokenizers = [Tokenizer(words, template) for words in "ab" for template in "xy"]
    chats = [
        chat_model(),
        chat_model(chat_template={"enable_thinking": False}),
        chat_model(tools_prompt=ToolsPrompt.SYSTEM),
    ]
    chats.append(chat_model(tools_prompt=ToolsPrompt.SYSTEM, dialect=Dialect.ACTION))
    assert len({ChatTokens(one, chat).digest() for one in tokenizers for chat in chats}) == 16
