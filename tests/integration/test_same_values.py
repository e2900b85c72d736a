"""The same rows from every kind of file that real libraries write; and the end of a process that has read one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.child import ended
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.lib.arrow_values import rows_of_table
from xp.lib.data_files import rows_of_file, rows_of_hub
from xp.planning.row_files import row_lines
from xp.planning.stages import prepare_config
from xp.tasks.prepare import prepare

datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra trl)")

ROWS = [
    {"prompt": f"When is day {n}?", "answer": f"2026-01-0{n}", "info": {"tags": [{"t": n}]}}
    for n in range(1, 5)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def in_jsonl(place: Path) -> None:
    (place / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def in_parquet(place: Path) -> None:
    (place / "data").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(str(place / "data/train-00000-of-00001.parquet"))


def saved(place: Path) -> None:
    data = datasets.Dataset.from_list([*ROWS, {"prompt": "out", "answer": "", "info": None}])
    data.filter(lambda row: row["prompt"] != "out").save_to_disk(str(place))
    again = datasets.load_from_disk(str(place))
    again.map(lambda _: {"answer": "of a cache"})
    assert list(place.glob("cache-*.arrow"))


def arrows(place: Path) -> None:
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(place))
    for name in ("state.json", "dataset_info.json"):
        (place / name).unlink()
    for name in ("cache-0123456789abcdef.arrow", "tmpabc_123.arrow"):
        (place / name).write_bytes(next(place.glob("data-*.arrow")).read_bytes())


@pytest.mark.parametrize("write", [in_jsonl, in_parquet, saved, arrows])
def test_a_directory_has_the_values_of_its_files(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    place = tmp_path / "set"
    place.mkdir()
    write(place)
    assert rows_of_hub(str(place)) == {"train": ROWS}
    files = [
        file
        for file in place.rglob("*")
        if file.suffix in (".jsonl", ".json", ".parquet", ".arrow")
        and file.name.startswith(("train", "data-"))
    ]
    if write is not saved:  # Its file has rows that its indices leave out.
        assert [rows_of_file(file) for file in files] == [ROWS]


def test_a_directorys_own_columns_and_filters_are_kept(tmp_path: Path) -> None:
    in_parquet(tmp_path)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: data/*.parquet\n  columns: [answer]\n---\n"
    )
    assert rows_of_hub(str(tmp_path)) == {"train": [{"answer": row["answer"]} for row in ROWS]}


def test_columns_of_maps_as_verl_has_them_are_planned_and_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = pa.map_(pa.string(), pa.string())
    table = pa.table(
        {
            "prompt": pa.array(
                [[[("role", "user"), ("content", f"{n}?")]] for n in range(4)], pa.list_(texts)
            ),
            "reward_model": pa.array([[("ground_truth", str(n))] for n in range(4)], texts),
            "extra_info": pa.array(
                [[("split", split)] for split in ("train", "train", "test", "test")], texts
            ),
        }
    )
    pq.write_table(table, tmp_path / "verl.parquet")
    spec = compose(["env=graded", f"env.rows={tmp_path}/verl.parquet", "env.grader=exact"])
    lines = "\n".join(row_lines(spec))
    assert "2 train, 2 test" in lines
    assert "answer from the column reward_model.ground_truth" in lines
    prepare(prepare_config(spec), {}, tmp_path)
    assert "4 of 4 right answers score 1\n" in capsys.readouterr().out


def test_a_download_of_the_hub_has_the_values_of_its_files_without_a_network(
    tmp_path: Path,
) -> None:
    """`load_dataset` knows the hub's cache by its own prepared tables alone, in which texts are dates."""
    write = in_parquet
    repository = tmp_path / "hub/hub/datasets--org--days"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)
    write(snapshot)
    program = "import json; from xp.lib.data_files import rows_of_hub; print(json.dumps(rows_of_hub('hf:org/days')))"
    result = ended(
        [sys.executable, "-c", program],
        env={"PATH": "/usr/bin:/bin", "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"train": ROWS}


KINDS: list[tuple[Any, Any, Any]] = [
    (
        pa.map_(pa.string(), pa.string()),
        [("ground_truth", "4"), ("b", None)],
        {"ground_truth": "4", "b": None},
    ),
    (pa.map_(pa.int32(), pa.list_(pa.date32())), [(1, [date(2026, 1, 1)])], {"1": ["2026-01-01"]}),
    (
        pa.decimal256(50, 30),
        Decimal("0.123456789012345678901234567891"),
        "0.123456789012345678901234567891",
    ),
    (pa.timestamp("ns"), datetime(2026, 1, 1, 10), "2026-01-01T10:00:00"),
    (
        pa.large_list(pa.struct({"a": pa.int64(), "b": pa.string()})),
        [{"a": 1, "b": None}],
        [{"a": 1}],
    ),
    (pa.json_(), '{"a": [1, null]}', {"a": [1, None]}),
]


@pytest.mark.parametrize(
    ("kind", "value", "expected"), KINDS, ids=[str(kind) for kind, *_ in KINDS]
)
def test_a_type_arrives_as_in_json(tmp_path: Path, kind: Any, value: Any, expected: Any) -> None:
    array: Any = pa.array([value, None], kind.storage_type if kind == pa.json_() else kind)
    if kind == pa.json_():
        array = pa.ExtensionArray.from_storage(kind, array)
    table = pa.table({"column": array, "prompt": ["a", "b"]})
    rows = [{"column": expected, "prompt": "a"}, {"column": None, "prompt": "b"}]
    assert rows_of_table(table) == json.loads(json.dumps(rows)) == rows
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows_of_file(tmp_path / "a.parquet") == rows


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([b"a"]), "binary"),
        (pa.array([timedelta(1)]), "duration"),
        (pa.array([[b"a"]]), "binary"),
    ],
)
def test_a_type_that_json_lacks_is_refused_by_its_column(
    tmp_path: Path, array: Any, kind: str
) -> None:
    pq.write_table(pa.table({"prompt": ["a"], "raw": array}), tmp_path / "a.parquet")
    with pytest.raises(XpError, match=f"a.parquet: the column 'raw' has the type {kind}.*drop"):
        rows_of_file(tmp_path / "a.parquet")


def test_a_process_that_has_read_parquet_ends_with_its_own_code(tmp_path: Path) -> None:
    """Arrow's threads let a file of Python's go at the end, and aborted 6 of 10 processes by it."""
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    program = (
        "import sys; from xp.envs.rows import load_rows; from xp.errors import XpError\n"
        "try: load_rows(sys.argv[1], {'answer': 'nope'})\n"
        "except XpError as error: sys.exit(int(error.code))"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "rows.parquet")], stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for run in runs:
        assert run.communicate(timeout=60) == (None, b"")
    assert {run.returncode for run in runs} == {int(ExitCode.CONFIG)}
