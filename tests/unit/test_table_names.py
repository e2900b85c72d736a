"""Names in tables of task sets and evaluations are never cut, on a narrow terminal and in a pipe."""

from __future__ import annotations

import pytest

from xp.cli.evaluation import show_table
from xp.evaluation import tables
from xp.tasks.config import Purpose
from xp.tasks.manifest import Count
from xp.tasks.prompt_lengths import Counted, Lengths
from xp.tasks.report import print_summary

ENV = "whodunit_mini_multiply_and_a_few_more"
MODEL = "an-organisation-of-mine-Qwen2.5-1.5B-Instruct-checkpoint-120"
COUNTED = Counted({(ENV, Purpose.HELD_OUT): Lengths(1, 123.0, "over 123,456", 0.25)}, "a note")


@pytest.fixture(autouse=True, params=["pipe", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow terminal, as a launcher announces its own to a stage, or none."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")
    else:
        monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.mark.parametrize("lengths", [None, COUNTED])
def test_the_table_of_a_task_set_has_whole_names_and_numbers(
    lengths: Counted | None, capsys: pytest.CaptureFixture[str]
) -> None:
    count = Count(tasks=1_234_567, failed=12_345, overlapping=7_654_321, prompt_characters=5)
    print_summary("the set", {ENV: {"held_out": count}}, lengths)
    row = capsys.readouterr().out.splitlines()[3]
    last = ["123", "over", "123,456", "25.0%"] if lengths else ["0"]
    assert row.split() == [ENV, "held_out", "1234567", "12345", "7654321", *last]
    assert len(row) < 130


def test_a_task_set_of_a_bundled_environment_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    env = "whodunit_mini"
    found = Counted({(env, Purpose.HELD_OUT): Lengths(1, 123.0, "123,456", 0.25)}, "a note")
    print_summary("the set", {env: {"held_out": Count(tasks=1_234)}}, found)
    assert len(capsys.readouterr().out.splitlines()[3]) <= 80


def test_the_table_of_evaluations_has_whole_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (ENV, MODEL, "1234", "0.123", "0.100 to 0.200", "12.3%", "0")
    monkeypatch.setattr(tables, "rows", lambda _: [row])
    show_table([])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == [ENV, MODEL, "1234", "0.123", "0.100", "to", "0.200", "12.3%", "0"]
