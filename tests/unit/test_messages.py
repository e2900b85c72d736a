"""Names, ids and calls of messages, from data and environments through every process and trainer to the template."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat_templates import tokenizer_of
from tests.support.fake_session import RULES
from tests.support.ors_server import rules
from tests.support.sections import member_of, selection
from xp.backends.skyrl.worker import train as skyrl
from xp.backends.slime.worker import train as slime
from xp.envs import wire
from xp.envs.base import ProtocolError, Task
from xp.envs.graded import GradedProvider
from xp.envs.messages import chat_messages
from xp.episode.tokens import ChatTokens
from xp.lib.data_files import rows_of_file
from xp.results.evaluation.play import Dialogue
from xp.results.evaluation.settings import ToolCalls
from xp.tasks.config import Purpose
from xp.tasks.entries import TaskEntry
from xp.tasks.questions import described, entry_of
from xp.tasks.row import TaskRow, read_rows, write_rows
from xp.tasks.template_check import PROBE_TOOLS


def asked(name: str, arguments: Any, **more: str) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


GIVEN = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "Look."}, {"type": "text", "text": "Well."}],
    },
    asked("look_around", {"which_room": "attic"}),
    {"role": "tool", "content": "Dust.", "name": None, "tool_call_id": None},
    asked("list_rooms", '{"floor": 2}', id="call_l424lBzaUjflA9OkvV4Mz9i1"),
    {"role": "tool", "content": "None.", "tool_call_id": "call_l424lBzaUjflA9OkvV4Mz9i1"},
    {"role": "user", "content": "And now?"},
]
"""A dialogue as files have it: OpenAI's with ids, and others without."""


def rows() -> dict[str, list[dict[str, Any]]]:
    return {
        "train": [
            {"prompt": GIVEN, "answer": "x"},
            {"prompt": [{"role": "user", "content": "Hi."}], "answer": "y"},
        ]
    }


def equals(answer: str, row: dict[str, Any]) -> float:
    return float(answer == row["answer"])


def test_messages_get_texts_ids_names_and_arguments_in_one_form() -> None:
    look, dust, listed, none = chat_messages(GIVEN)[1:5]
    assert chat_messages(GIVEN)[0] == {"role": "user", "content": "Look.\nWell."}
    assert look["content"] == ""
    assert look["tool_calls"][0]["id"] == "call00000"
    assert look["tool_calls"][0]["function"] == {
        "name": "look_around",
        "arguments": {"which_room": "attic"},
    }
    assert dust == {
        "role": "tool",
        "content": "Dust.",
        "name": "look_around",
        "tool_call_id": "call00000",
    }
    assert listed["tool_calls"][0]["function"]["arguments"] == {"floor": 2}
    assert none["name"] == "list_rooms"
    assert none["tool_call_id"] == "call_l424lBzaUjflA9OkvV4Mz9i1"
    assert chat_messages(chat_messages(GIVEN)) == chat_messages(GIVEN)


def test_a_null_argument_of_json_is_one_and_parquets_is_none(tmp_path: Path) -> None:
    """Parquet gives each call the arguments of all calls, the others as nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    calls = [asked("look", {"room": "hall", "note": None}), asked("look", '{"note": null}')]
    first, second = chat_messages(calls)
    assert first["tool_calls"][0]["function"]["arguments"] == {"room": "hall", "note": None}
    assert second["tool_calls"][0]["function"]["arguments"] == {"note": None}
    table = [
        {"prompt": [asked("look", {"room": "hall"}), asked("list", {"floor": 2})], "answer": None}
    ]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "rows.parquet")
    (row,) = rows_of_file(tmp_path / "rows.parquet")
    assert "answer" in row
    assert [
        one["tool_calls"][0]["function"]["arguments"] for one in chat_messages(row["prompt"])
    ] == [
        {"room": "hall"},
        {"floor": 2},
    ]


@pytest.mark.parametrize("key", ["name", "tool_call_id"])
def test_results_are_in_the_order_of_the_calls_that_they_answer(key: str) -> None:
    """Qwen's template and others pair them by their order alone."""
    calls = [{"name": name, "id": name if key == "tool_call_id" else None} for name in ("a", "b")]
    results = [{"role": "tool", "content": name.upper(), key: name} for name in ("b", "a")]
    two = {"role": "assistant", "content": "", "tool_calls": calls}
    read = chat_messages([two, *results, {"role": "user", "content": "?"}, two, *results])
    assert [(one["content"], one["name"]) for one in read if one["role"] == "tool"] == [
        ("A", "a"),
        ("B", "b"),
    ] * 2


@pytest.mark.parametrize(
    ("given", "role"),
    [
        ("human", "user"),
        ("gpt", "assistant"),
        ("developer", "system"),
    ],
)
def test_roles_are_those_of_chat_completions(given: str, role: str) -> None:
    assert chat_messages([{"role": given, "content": "x"}]) == [{"role": role, "content": "x"}]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ('"Look."', "expected a list"),
        ('[{"role": 1, "content": "x"}]', "message 0: expected {role, content}"),
        ('[{"role": "narrator", "content": "x"}]', "a role of assistant, system, tool, user"),
        ('[{"role": "user", "content": null}]', "message 0: expected a text as content, got None"),
        ('[{"role": "user", "content": [{"type": "image"}]}]', "expected a text as content"),
        (json.dumps([asked("look", "[1]")]), "arguments as an object"),
        ('[{"role": "assistant", "content": "", "tool_calls": ["look"]}]', "got 'look'"),
    ],
)
def test_what_is_no_message_is_named_with_its_place(given: str, fault: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        chat_messages(json.loads(given))
    assert fault in str(caught.value)


def prepared(tmp_path: Path) -> list[TaskRow]:
    """The task of `GIVEN` and another, through the grader's process, JSON and a task set."""
    config = rules(provider="local", grader=f"{__name__}:equals", rows=f"{__name__}:rows")
    provider = GradedProvider(config, {})
    member = member_of(config, selection())
    made = []
    for index in range(2):
        task = Task("a", "train", index)
        entry = entry_of("h", *described(provider, task), member)
        messages = json.loads(json.dumps(entry.messages))
        made.append(
            TaskRow(
                task.id,
                "a",
                Purpose.TRAIN,
                "train",
                index,
                "h",
                tuple(messages),
                json.dumps(PROBE_TOOLS),
                1.0,
            )
        )
    provider.close()
    write_rows(tmp_path / "tasks.parquet", made)
    return list(read_rows(tmp_path / "tasks.parquet"))


def test_every_trainer_gets_the_prompt_that_the_rows_have(tmp_path: Path) -> None:
    from datasets import Dataset, load_dataset

    from xp.backends.trl.worker.rollout import TASK_ID, trl_rows
    from xp.worker.played import SampledTask

    made = prepared(tmp_path)
    expected = [tuple(chat_messages(row["prompt"])) for row in rows()["train"]]
    by_id = {row.task_id: row.messages for row in made}
    trl = [by_id[one["prompt"][0][TASK_ID]] for one in Dataset.from_list(trl_rows(made))]
    skyrl.write_view(made, tmp_path / "skyrl.parquet")
    read = load_dataset(
        "parquet", data_files=str(tmp_path / "skyrl.parquet"), cache_dir=str(tmp_path)
    )["train"]
    slime.write_view(made, tmp_path / "slime.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "slime.jsonl").read_text().splitlines()]
    seen = {
        "trl": trl,
        "skyrl": [SampledTask.of_columns(one).messages for one in read],
        "slime": [tuple(one["input"]) for one in lines],
    }
    assert seen == dict.fromkeys(seen, expected)
    chat = ChatTokens(tokenizer_of("gemma4_v5"))
    text = chat.rendered(pickle.loads(pickle.dumps(seen["slime"][0])), made[0].tools)
    assert '<|tool_call>call:look_around{which_room:<|"|>attic<|"|>}<tool_call|>' in text
    assert '<|tool_response>response:list_rooms{value:<|"|>None.<|"|>}<tool_response|>' in text


def test_two_prompts_that_differ_in_their_calls_are_two() -> None:
    one, other = (
        chat_messages([*GIVEN[:1], asked("look", {"room": room})]) for room in ("hall", "attic")
    )
    assert TaskEntry("h", tuple(one)).prompt_digest != TaskEntry("h", tuple(other)).prompt_digest


def test_ors_blocks_become_what_openrewards_client_makes_of_them() -> None:
    from openreward.api.environments import client
    from openreward.api.environments.types import Message as Said
    from openreward.api.environments.types import TextBlock, ToolCallBlock, ToolResultBlock

    call = ToolCallBlock("c1", "look", {"room": "hall"})
    said = [
        Said("system", [TextBlock("Be brief.")]),
        Said("user", [TextBlock("Look.")]),
        Said("assistant", [TextBlock("So."), call, ToolCallBlock("c2", "list", {})]),
        Said(
            "user",
            [
                ToolResultBlock("c1", [TextBlock("Dust.")]),
                ToolResultBlock("c2", []),
                TextBlock("Go on."),
            ],
        ),
    ]
    value = [json.loads(json.dumps(client._message_to_wire(one))) for one in said]
    found = wire.messages(value, "GET /messages")
    assert found == chat_messages(client.convert_messages(said, "openai"))
    value[2]["blocks"][1]["input"] = "hall"
    with pytest.raises(ProtocolError, match=r"message 2: expected a tool call"):
        wire.messages(value, "GET /messages")


@pytest.mark.parametrize("tools", list(ToolCalls))
def test_an_api_gets_earlier_calls_in_its_own_form(tools: ToolCalls, tmp_path: Path) -> None:
    dialogue = Dialogue(prepared(tmp_path)[0], RULES, tools)
    if dialogue.is_native:
        arguments = [
            call["function"]["arguments"]
            for one in dialogue.messages
            for call in one.get("tool_calls", ())
        ]
        assert arguments == ['{"which_room": "attic"}', '{"floor": 2}']
        assert [one.get("tool_call_id") for one in dialogue.messages][2] == "call00000"
    else:
        roles = [one["role"] for one in dialogue.messages]
        assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
        assert (
            '<tool_call>\n{"name": "look_around", "arguments": {"which_room": "attic"}}'
            in dialogue.messages[2]["content"]
        )
        assert (
            dialogue.messages[5]["content"] == "<tool_response>\nNone.\n</tool_response>\nAnd now?"
        )
