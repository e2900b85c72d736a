"""Every run in one row: tags and notes, the words that filter, and rows that are read again when files change."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.report_run import episode, make_evaluation, make_run, write_episodes
from xp.__main__ import main
from xp.errors import ExitCode
from xp.execution.notes import read_notes
from xp.execution.record import RunStatus, SettledLength, read_record, write_record
from xp.execution.sweep import write_sweep
from xp.results.report.listing import Listing

NO_CALL = "<tool_call>{broken"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned, a flat one with another learning rate, and a finished evaluation."""
    root = tmp_path_factory.mktemp("listing")
    make_run(root, "good")
    make_run(root, "flat", gain=0.0, seed=2, training__learning_rate=1e-5)
    make_evaluation(root, "mine", 0.4)
    return root


@pytest.fixture
def outputs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "outputs"))


def xp(outputs: Path, *words: str) -> int:
    return main(["runs", *words, f"outputs={outputs}"])


def test_tags_and_the_note_are_in_the_runs_own_directory(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert xp(outputs, "tag", "*", "good-baseline", "paper") == ExitCode.OK
    assert xp(outputs, "tag", "good", "paper", "--remove", "--note", "of table 2") == ExitCode.OK
    assert xp(outputs, "tag", "good", "--remove", "absent") == ExitCode.CONFIG
    assert "has no tag 'absent'; its tags: good-baseline" in capsys.readouterr().err
    assert xp(outputs, "tag", "good") == ExitCode.OK
    assert capsys.readouterr().out == "good  good-baseline  of table 2\n"
    notes = json.loads((outputs / "runs/good/notes.json").read_text())
    assert notes == {"tags": ["good-baseline"], "note": "of table 2"}
    assert read_notes(outputs / "evaluations/mine").tags == ("good-baseline", "paper")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("two words",), "a sentence is a note: --note"),
        (("a=b",), "a tag begins with a letter or a digit"),
    ],
)
def test_a_tag_that_cannot_be_filtered_by_is_refused(
    outputs: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert xp(outputs, "tag", "good", *words) == ExitCode.CONFIG
    assert said in capsys.readouterr().err
    assert not (outputs / "runs/good/notes.json").exists()


def test_words_filter_by_keys_tags_and_text(outputs: Path) -> None:
    xp(outputs, "tag", "good", "good-baseline", "--note", "the run of table 2")
    listing = Listing(outputs)
    expected = {
        ("seed=2",): ["flat"],
        ("learning_rate=0.00001",): ["flat"],
        ("training.learning_rate=1e-5", "seed=1"): [],
        ("rate=1e-5",): [],
        ("env=whodunit_mini", "status=succeeded"): ["flat", "good"],
        ("model=mine",): ["mine"],
        ("hardware=cpu",): ["flat", "good"],
        ("tag=go*",): ["good"],
        ("GOO",): ["good"],
        ("table 2",): ["good"],
    }
    assert {words: sorted(listing.data(60, 0, words)["names"]) for words in expected} == expected


def test_rows_have_verdicts_with_the_trajectories_where_these_decide(outputs: Path) -> None:
    shutil.rmtree(outputs / "runs/flat/attempt_1/train/trajectories")
    calls = [{"turn": 0, "malformed": NO_CALL}]
    broken = [episode("train", 0, index, 0, 0.0, said=NO_CALL) for index in range(60)]
    broken = [type(one)(**{**vars(one), "tool_calls": calls}) for one in broken]
    write_episodes(outputs / "runs/flat/attempt_1/train/trajectories/train.jsonl", broken)
    rows = {row["name"]: row for row in Listing(outputs).data(60)["rows"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "good": "learned",
        "flat": "broken",
        "mine": None,
    }
    assert [round(one, 2) for one in rows["good"]["after"]] == [0.5, 0.26, 0.74]
    assert rows["good"]["curve"] == [0.0, 0.25, 0.5, 0.75]


def test_a_row_without_a_verdict_is_counted_once(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = count()
    monkeypatch.setattr("xp.results.report.listing.monotonic", lambda: float(next(clock)))
    data = Listing(outputs).data(4)  # time for the rows, not for their verdicts
    assert data["left"] > 0
    assert len(data["rows"]) == data["total"] == 3


def test_only_rows_that_changed_are_sent_again_and_lost_ones_go(outputs: Path) -> None:
    listing = Listing(outputs)
    first: dict[str, Any] = listing.data(0)
    assert first["rows"] == []
    assert first["left"] == 3
    whole = listing.data(60)
    assert len(whole["rows"]) == 3
    assert whole["left"] == 0
    assert listing.data(60, whole["version"])["rows"] == []
    xp(outputs, "tag", "good", "new")
    changed = listing.data(60, whole["version"])
    assert [(row["name"], row["tags"], row["verdict"]) for row in changed["rows"]] == [
        ("good", ["new"], "learned")
    ]
    shutil.rmtree(outputs / "runs/flat")
    (outputs / "runs/good/run.json").write_text("{}")
    after = listing.data(60, changed["version"])
    assert sorted(after["names"]) == ["good", "mine"]
    assert [(row["name"], row["status"]) for row in after["rows"]] == [("good", "unreadable")]


def test_a_live_run_has_its_step_and_time_left_and_a_point_of_a_sweep_what_differs(
    outputs: Path,
) -> None:
    run = outputs / "runs/good"
    record = read_record(run)
    length = SettledLength(9, 8, None)
    live = {"status": RunStatus.RUNNING}
    going = replace(record.attempts[-1], supervisor=None, training=length, **live)
    # Without a directory of its own the copy is this user's.
    write_record(run, replace(record, attempts=(going,), user="", directory="", **live))
    # The fourth of nine steps of 2 s has just ended.
    metrics = run / "metrics.jsonl"
    lines = [json.loads(line) | {"time": time.time()} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    write_sweep(outputs, ["seed=1,2"], ["good", "flat"])
    data = Listing(outputs).data(60)
    rows = {row["name"]: row for row in data["rows"]}
    assert re.fullmatch(r"step 4 of 9, (8|9|10) s left", rows["good"]["progress"])
    assert data["sweeps"][0]["points"]["flat"] == "learning_rate 1e-05, seed 2"
