"""Places of episodes to fine-tune on: data sets of messages, files, runs and scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.demonstrations import TOOLS
from xp.composition import compose
from xp.errors import XpError
from xp.worker.dialogues import of_messages


def row_of(tool: str, arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "?"}, called], "tools": [schema]}


@pytest.mark.parametrize("name", ["talk.parquet", "data:default"])
def test_a_data_set_of_messages_is_what_its_rows_are(name: str, tmp_path: Path) -> None:
    """Columns of structs: a row has the keys of the other rows' arguments and schemas, as null."""
    datasets = pytest.importorskip("datasets")
    move, look, *_ = json.loads(TOOLS)
    properties = {"n": {"type": "integer"}}
    move["function"]["parameters"] = {"type": "object", "properties": properties}
    rows = [
        row_of("move", {"n": 1}, move),
        row_of(
            "look",
            {"to": "x"},
            look,
        ),
    ]
    (tmp_path / "data").mkdir()
    file = "talk.parquet" if name == "talk.parquet" else "data/train-00000-of-00001.parquet"
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / file))
    found = list(of_messages(str(tmp_path / name)))
    assert [one.turns for one in found] == [{1: [("move", {"n": 1})]}, {1: [("look", {"to": "x"})]}]
    assert [json.loads(one.tools) for one in found] == [[move], [look]]


def test_a_data_set_without_a_split_to_learn_from_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for split in ("test", "validation"):
        (tmp_path / f"{split}.jsonl").write_text('{"messages": []}\n')
    with pytest.raises(XpError, match="has no split train, but"):
        list(of_messages(str(tmp_path)))


@pytest.mark.parametrize("name", ["talk.jsonl", "./data:main"])
def test_a_place_of_messages_becomes_absolute(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.jsonl").touch()
    (tmp_path / "data").mkdir()
    spec = compose(["env=whodunit_mini", f"sft.data={name}"])
    assert spec.sft.data == f"{tmp_path}/{name.removeprefix('./')}"


def test_the_beginning_of_a_runs_name_becomes_the_whole_name(tmp_path: Path) -> None:
    """Another run that begins so would stop a resume of this one."""
    for name in ("runs/a-1", "runs/a-12", "runs/b-1", "evaluations/b-2"):
        (tmp_path / name).mkdir(parents=True)
    written = ("run:b", "eval:b", "run:a", "hf:org/talks:main@abc", "solve:my_pkg.play:solve")
    specs = [
        compose(["env=whodunit_mini", f"outputs={tmp_path}", f"sft.data={name}"])
        for name in written
    ]
    assert [spec.sft.data for spec in specs] == ["run:b-1", "eval:b-2", *written[2:]]
