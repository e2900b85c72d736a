"""A run's summary, `runs show` and a failure say where its episodes and its report are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.report_run import data_of, make_run
from xp.__main__ import main
from xp.cli.report import places_of_failed
from xp.execution.record import RunStatus, read_record, update_stage, write_record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that failed while it was evaluated."""
    found = make_run(tmp_path_factory.mktemp("outputs"), "R")
    write_record(
        found, update_stage(read_record(found), "evaluate", status=RunStatus.FAILED, exit_code=9)
    )
    return found


def test_runs_show_names_trajectories_and_the_command_that_writes_a_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "show", "R", f"outputs={run.parents[1]}"]) == 0
    said = capsys.readouterr().out
    command = f"python -m xp runs episode R --worst outputs={run.parents[1]}"
    assert f"{run}/attempt_1/*/trajectories  ({command})" in said
    assert "report        not written yet: python -m xp report R" in said


def test_a_failed_run_with_episodes_has_its_report_written_and_named(run: Path) -> None:
    assert places_of_failed(run)[1] == f"report        {run / 'report.html'}"
    assert len(data_of(run / "report.html")["runs"][0]["episodes"]["columns"]["step"]) == 4 * 8 + 40
