"""How far runs are, in the terminal: curves in a line, a progress column, the last problem."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.recorded_runs import FAULTS, progressing
from xp.__main__ import main
from xp.cli.display import symptom_lines
from xp.cli.progress import sparkline
from xp.execution.progress import RunProgress
from xp.execution.record import RunStatus, read_record, update_stage, write_record


def test_a_sparkline_goes_from_its_smallest_value_to_its_largest() -> None:
    assert [sparkline(values) for values in ([0.0, 0.5, 1.0], [0.3, 0.3], [])] == ["▁▅█", "▁▁", ""]
    long = sparkline(list(range(1000)))
    assert len(long) == 32
    assert "".join(dict.fromkeys(long)) == "▁▂▃▄▅▆▇█"


def test_runs_are_listed_and_shown_with_how_far_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progressing(tmp_path)
    assert main(["runs", "list", f"outputs={tmp_path}"]) == 0
    head, row = (line.split("\t") for line in capsys.readouterr().out.splitlines()[:2])
    cells = dict(zip(head, row, strict=True))
    names = ("progress", "steps", "environment", "model", "algorithm")
    assert [cells[name] for name in names] == ["0.50", "36/72", "whodunit_mini", "tiny", "grpo"]
    assert main(["runs", "show", "R", f"outputs={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "0.347 -> 0.981  (36 steps)" in shown
    assert "problem" not in shown


def test_the_last_problem_of_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = progressing(tmp_path, RunStatus.FAILED)
    log = run / "attempt_1/train/log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(
        "xp: symptom\nxp: the disk is full\x1b[31m\nfree some\ntrain:   0%|          | 0/6 [00:07<?, ?step/s]\n\n"
    )
    failed = update_stage(
        read_record(run),
        "train",
        status=RunStatus.FAILED,
        exit_code=74,
        log=str(log.relative_to(tmp_path)),
    )
    write_record(run, failed)
    assert main(["runs", "show", "R", f"outputs={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    assert "problem  train: exit 74: xp: the disk is full" in shown
    assert "\x1b" not in shown
    log.write_text("xp: a notice\nTraceback (most recent call last):\n  File x\nKeyError: 3\n")
    assert main(["runs", "show", "R", f"outputs={tmp_path}"]) == 0
    assert "exit 74: KeyError: 3" in capsys.readouterr().out


def test_a_symptom_is_a_problem_told_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = progressing(tmp_path)
    lines = FAULTS["constant reward"][1]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({**line, "stage": "train"}) + "\n" for line in lines)
    )
    assert main(["runs", "show", "R", f"outputs={tmp_path}"]) == 0
    assert "problem  equal_groups, step 36: 100% of the tasks" in capsys.readouterr().out
    first, second = symptom_lines(run)
    assert "no reward has varied so far" in first
    assert second.strip() == f"python -m xp runs diagnose R outputs={tmp_path}"


@pytest.mark.parametrize(
    ("progress", "seconds"),
    [
        (RunProgress(False, 3, 10, step_s=2.0), 14.0),
        (RunProgress(False, 3, None, step_s=2.0), None),
        (RunProgress(False, 3, 10), None),
        # The last step takes longer than the others.
        (RunProgress(False, 9, 10, step_s=2.0, at=1.0), 0.0),
    ],
)
def test_the_time_left_is_that_of_the_steps_that_are_left(
    progress: RunProgress, seconds: float | None
) -> None:
    assert progress.seconds_left == seconds
