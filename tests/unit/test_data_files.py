"""Files of rows as people have them: encodings, line ends, broken lines, and data sets in the hub's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xp.composition import compose
from xp.envs.rows import load_rows
from xp.errors import ExitCode, XpError
from xp.execution.launchers.files import copy_modules, locate_data
from xp.lib import data_files
from xp.lib.data_files import rows_of_file, rows_of_hub, shipped_name, value_at
from xp.planning.row_files import row_lines
from xp.planning.stages import task_set_place

SUMS = [{"question": f"{n} + {n}?", "answer": 2 * n} for n in range(20)]


def written(place: Path, text: str, encoding: str = "utf-8") -> Path:
    place.write_bytes(text.encode(encoding))
    return place


def test_json_lines_may_have_blank_lines_and_windows_line_ends(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", '\ufeff{"prompt": "a\u2028b"}\r\n\r\n  \n{"prompt": "c"}')
    assert rows_of_file(file) == [{"prompt": "a\u2028b"}, {"prompt": "c"}]


def test_a_json_file_is_a_list_or_lines(tmp_path: Path) -> None:
    whole = written(tmp_path / "list.json", "\ufeff\n " + json.dumps(SUMS, indent=2))
    lines = written(tmp_path / "lines.json", "\n".join(map(json.dumps, SUMS)))
    assert rows_of_file(whole) == rows_of_file(lines) == SUMS


def test_csv_has_quoted_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = written(
        tmp_path / "a.csv", '\ufeffquestion,answer\r\n"one, ""two""\nthree?",3\r\n\r\nfour?,4\r\n'
    )
    assert rows_of_file(file) == [
        {"question": 'one, "two"\nthree?', "answer": "3"},
        {"question": "four?", "answer": "4"},
    ]


def test_parquet_has_structs_and_lists_of_them(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {
        "prompt": [{"role": "user", "content": "a"}],
        "info": {"truth": {"value": "1"}, "tags": [{"t": 1}]},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    assert rows_of_file(tmp_path / "a.parquet") == [row]
    assert value_at(row, "info.truth.value") == "1"


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("a.jsonl", "{}\n" * 16 + '{"a": 1,}\n', "line 17 is not JSON: .*at column"),
        ("a.jsonl", '{"a": 1}\n[1]\n', r"line 2 is not an object with columns; got \[1\]"),
        ("a.json", "[1]", "entry 1 is not an object"),
        ("a.csv", "a,b\n1,2\n1,2,3\n", "line 3 has 3 cells; the header has 2"),
        ("a.csv", 'a,b\n"1,2\n', "line 2 is not CSV"),
        ("a.jsonl", "\n\n", "has no rows"),
        ("a.xlsx", "x", "ends with .jsonl, .json, .csv, .parquet"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str, fault: str
) -> None:
    with pytest.raises(XpError, match=fault) as error:
        rows_of_file(written(tmp_path / name, text))
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        ("question answer", "question", "answer"),
        ("problem solution", "problem", "solution"),
        ("problem solution answer", "problem", "answer"),
        ("question solution output", "question", None),
    ],
)
def test_usual_columns_are_found(
    tmp_path: Path, columns: str, prompt: str, answer: str | None
) -> None:
    row = {name: f"the {name}" for name in columns.split()}
    (splits, chosen) = load_rows(str(written(tmp_path / "a.jsonl", json.dumps(row))), {})
    assert (chosen["prompt"], chosen.get("answer")) == (prompt, answer)
    assert splits["train"][0]["prompt"] == f"the {prompt}"


def test_two_columns_that_may_be_the_prompt_are_not_guessed_among(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", '{"instruction": "a", "input": "b", "output": "c"}')
    with pytest.raises(
        XpError, match=r"instruction and input may be the prompt\n.*env\.columns\.prompt=instr"
    ):
        load_rows(str(file), {})
    assert load_rows(str(file), {"prompt": "input"})[0]["train"][0]["prompt"] == "b"


def test_a_prompt_that_has_the_answer_as_its_last_message_is_refused(tmp_path: Path) -> None:
    """Files for supervised fine-tuning end each dialogue with the answer."""
    dialogue = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    file = written(tmp_path / "a.jsonl", json.dumps({"messages": dialogue, "answer": "4"}))
    with pytest.raises(
        XpError, match=r"row 1 of split train: its last message is the assistant's.*leave .* out"
    ):
        load_rows(str(file), {"prompt": "messages"})


def test_files_are_splits_and_a_column_may_name_them_too(tmp_path: Path) -> None:
    rows = [
        {"q": n, "fold": {"name": "dev" if n % 2 else "train"}, "text": f"n{n}"} for n in range(4)
    ]
    file = str(written(tmp_path / "a.json", json.dumps(rows)))
    by_file, _ = load_rows({"train": file, "test": file}, {"prompt": "text"})
    by_column, _ = load_rows(file, {"prompt": "text", "split": "fold.name"})
    assert {split: len(found) for split, found in by_file.items()} == {"train": 4, "test": 4}
    assert {split: [row["q"] for row in found] for split, found in by_column.items()} == {
        "train": [0, 2],
        "dev": [1, 3],
    }


HUB_README = """---
license: mit
configs:
- config_name: easy
  data_files:
  - {split: train, path: easy/train-*.parquet}
  - {split: validation, path: easy/validation.parquet}
- config_name: hard
  data_files: [{split: train, path: hard.parquet}]
---
# Sums
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory as a data set's repository is on the hub: front matter, two configurations, two shards."""
    pytest.importorskip("datasets", reason="datasets is not installed (extra trl)")
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    directory = tmp_path / "sums"
    (directory / "easy").mkdir(parents=True)
    (directory / "README.md").write_text(HUB_README)
    files = {
        "easy/train-0": SUMS[:8],
        "easy/train-1": SUMS[8:16],
        "easy/validation": SUMS[16:],
        "hard": SUMS[:3],
    }
    for name, rows in files.items():
        pq.write_table(pa.Table.from_pylist(rows), directory / f"{name}.parquet")
    return directory


def test_a_data_set_in_the_hubs_layout_has_splits_and_configurations(hub: Path) -> None:
    easy = rows_of_hub(f"{hub}:easy")
    hard = rows_of_hub(f"{hub}:hard")
    assert {split: len(rows) for split, rows in easy.items()} == {"train": 16, "validation": 4}
    assert hard == {"train": SUMS[:3]}
    with pytest.raises(XpError, match=r"easy.*hard.*\n.*hf:ORG/NAME:CONFIG"):
        rows_of_hub(str(hub))


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ("names: [question, answer]", [("1 + 1", "02"), ("2 + 2", "04")]),
        ("skiprows: 1\nnames: [question, answer]", [("2 + 2", 4)]),
        ('quotechar: "\'"', [("2 + 2", 4)]),
    ],
)
def test_a_csv_files_own_settings_are_followed(
    hub: Path, settings: str, rows: list[tuple[str, Any]]
) -> None:
    place = hub.parent / "settings"
    place.mkdir()
    quote = "'" if "quotechar" in settings else '"'
    header = "question,answer" if "names" not in settings else f"{quote}1 + 1{quote},02"
    (place / "train.csv").write_text(f"{header}\n{quote}2 + 2{quote},04\n")
    lines = settings.replace("\n", "\n  ")
    (place / "README.md").write_text(
        f"---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  {lines}\n---\n"
    )
    found = rows_of_hub(str(place))["train"]
    assert [(row["question"], row["answer"]) for row in found] == rows


def test_a_blank_split_is_the_training_one_and_usual_names_have_one_spelling(
    tmp_path: Path,
) -> None:
    cells = [None, " ", float("nan"), "train", "Train ", "Test", "TEST", "Dev", "Extra"]
    rows = [{"prompt": f"{n}?", "split": cell} for n, cell in enumerate(cells)]
    file = written(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    splits, _ = load_rows(str(file), {})
    assert {name: len(found) for name, found in splits.items()} == {
        "train": 5,
        "test": 2,
        "dev": 1,
        "Extra": 1,
    }


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "?", "images": ["a.png"]}',
        '{"prompt": "?", "image": "https://host/a.JPG?x=1"}',
        '{"prompt": "?", "audio": {"array": [0.1], "sampling_rate": 16000}}',
        '{"prompt": "<image>What is it?"}',
        '{"prompt": [{"role": "user", "content": "What is it?\\n<video>"}]}',
    ],
)
def test_a_row_with_pictures_is_refused_by_name(tmp_path: Path, row: str) -> None:
    with pytest.raises(XpError, match=r"row 1.*has pictures or sound .*leave such rows out"):
        load_rows(str(written(tmp_path / "a.jsonl", row)), {})


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "?", "images": [], "image": null, "video": ""}',
        '{"prompt": "Close the tag of <image><src>a</src></image>."}',
    ],
)
def test_a_row_without_pictures_is_read(tmp_path: Path, row: str) -> None:
    assert load_rows(str(written(tmp_path / "a.jsonl", row)), {})


def words(file: object, *more: str) -> list[str]:
    return ["env=graded", f"env.rows={file}", "env.grader=number", *more]


@pytest.fixture(name="here")
def sums_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written(tmp_path / "sums.jsonl", "\n".join(map(json.dumps, SUMS)))


def test_a_path_is_relative_to_the_directory_of_the_command(here: Path) -> None:
    for name in ("sums.jsonl", "./sums.jsonl", f"../{here.parent.name}/sums.jsonl"):
        path = compose(words(name)).env.members["sums"].rows
        assert isinstance(path, str)
        assert Path(path).is_absolute()
        assert Path(path).samefile(here)


@pytest.mark.usefixtures("here")
def test_the_plan_says_how_many_rows_and_which_columns() -> None:
    line = "rows of sums: 20 train; prompt from the column question, answer from the column answer"
    assert row_lines(compose(words("sums.jsonl"))) == [line]


@pytest.mark.parametrize(
    ("written", "pattern"),
    [
        ("Answer: (.*)", "Answer: (.*)"),
        (r"(\d{1,3}),(\d+)", r"(\d{1,3}),(\d+)"),
        ("'[A-Z]'", "[A-Z]"),
        ("null", None),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_pattern_of_a_grader_is_a_text_as_it_is(written: str, pattern: str | None) -> None:
    more = (r"env.grader_args.mark=(\d+)", "env.grader_args.words=[a,b]")
    (member,) = compose(
        words("sums.jsonl", f"env.grader_args.pattern={written}", *more)
    ).env.members.values()
    assert member.grader_args == {"pattern": pattern, "mark": r"(\d+)", "words": ["a", "b"]}


def test_a_file_belongs_to_the_set_by_its_content(here: Path) -> None:
    place = task_set_place(compose(words("sums.jsonl")))
    (here.parent / "elsewhere").mkdir()
    copy = Path("elsewhere/sums.jsonl")
    copy.write_bytes(here.read_bytes())
    assert task_set_place(compose(words(copy))) == place
    copy.write_bytes(here.read_bytes().replace(b"19 + 19", b"19+19"))
    assert task_set_place(compose(words(copy))) != place


def test_a_run_has_a_copy_of_the_files_as_they_were(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = compose(words("sums.jsonl"))
    code = here.parent / "code"
    copy_modules((), code, locate_data(spec))
    monkeypatch.setattr(data_files, "__file__", str(code / "xp/lib/data_files.py"))
    here.write_text('{"question": "other", "answer": 1}')
    assert len(load_rows(str(here), {})[0]["train"]) == len(SUMS)
    assert (code / shipped_name(here)).is_file()


def test_a_copy_of_a_data_set_has_the_files_behind_its_links(hub: Path, tmp_path: Path) -> None:
    """The hub's cache has links to blobs."""
    (hub / "hard.parquet").rename(tmp_path / "blob")
    (hub / "hard.parquet").symlink_to(tmp_path / "blob")
    (hub / ".cache").mkdir()
    (hub / ".cache" / "time").write_text("1")
    spec = compose(words(f"{hub}:hard"))
    copy_modules((), tmp_path / "code", locate_data(spec))
    names = sorted(file.name for file in (tmp_path / "code").rglob("*") if file.is_file())
    assert names == [
        "README.md",
        "hard.parquet",
        "train-0.parquet",
        "train-1.parquet",
        "validation.parquet",
    ]


@pytest.mark.usefixtures("here")
def test_a_data_set_that_is_too_large_for_a_copy_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("xp.execution.launchers.files.MAX_DATA_BYTES", 10)
    with pytest.raises(
        XpError, match=r"would be copied into the run.*env\.rows=module:function"
    ) as error:
        locate_data(compose(words("sums.jsonl")))
    assert error.value.code is ExitCode.RESOURCE


@pytest.mark.parametrize("rows", ["hf:https://alice:XPCANARY@host/x"])
def test_a_password_in_a_name_of_rows_is_refused_and_not_repeated(rows: str) -> None:
    with pytest.raises(XpError, match="user or a password") as error:
        compose(words(f"'{rows}'"))
    assert "XPCANARY" not in str(error.value)


@pytest.mark.parametrize(
    "row",
    [
        "{}",
        '{"prompt": ""}',
    ],
)
def test_a_row_without_a_prompt_is_named(tmp_path: Path, row: str) -> None:
    file = written(tmp_path / "a.jsonl", f'{{"prompt": "x"}}\n{row}')
    with pytest.raises(XpError, match="row 2 of split train"):
        load_rows(str(file), {"prompt": "prompt"})
