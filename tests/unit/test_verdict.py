"""`runs diagnose` from its command line: a verdict with an exit code of its own, and what was seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.recorded_runs import FAULTS, MIXED, leave
from xp.__main__ import main
from xp.cli.display import symptom_lines
from xp.errors import ExitCode
from xp.execution.record import RunStatus, read_record, update_stage, write_record


def diagnosed(outputs: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["runs", "diagnose", "R", f"outputs={outputs}"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "code", "word"),
    [
        (MIXED, [1.0] * 9 + [0.9], ExitCode.OK, "learned"),
        ([1.0] * 9 + [0.9], MIXED, ExitCode.WORSE, "worse"),
        (MIXED, MIXED[::-1], ExitCode.FLAT, "flat"),
    ],
)
def test_held_out_before_and_after_decide(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: Sequence[float],
    after: Sequence[float],
    code: ExitCode,
    word: str,
) -> None:
    run = leave(tmp_path, before, after)
    found, told = diagnosed(tmp_path, capsys)
    assert found == code
    assert told.split(": ")[:2] == ["R", word]
    at_the_end = "\n".join(symptom_lines(run))
    assert ("worse: held-out reward" in at_the_end) == (word == "worse")


def test_a_run_that_could_learn_nothing_is_broken_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = leave(tmp_path, MIXED, MIXED)
    _, lines = FAULTS["constant reward"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, told = diagnosed(tmp_path, capsys)
    assert code == ExitCode.BROKEN
    assert "R: broken: held-out reward 0.500 -> 0.500 over 10 tasks; equal_groups" in told
    assert "training.group_size" in told
    assert main(["runs", "diagnose", "R", "--json", f"outputs={tmp_path}"]) == code
    assert json.loads(capsys.readouterr().out)["symptoms"][0]["rule"] == "equal_groups"


def test_a_reward_that_rose_without_passes_is_nothing_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    after = [*(0.9 + one / 100 for one in range(9)), 0.95]
    run = leave(tmp_path, [one / 10 for one in range(10)], after)
    _, lines = FAULTS["hacked"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, told = diagnosed(tmp_path, capsys)
    assert code == ExitCode.BROKEN
    assert "over 10 tasks, of which 0 passed before and 0 after; hacked" in told


def test_a_fine_tuning_without_a_training_is_judged_by_its_own_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = leave(tmp_path, MIXED, [1.0] * 9 + [0.9])
    (run / "metrics.jsonl").unlink()
    record = (run / "run.json").read_text()
    (run / "run.json").write_text(record.replace('"train"', '"sft"'))
    assert diagnosed(tmp_path, capsys)[0] == ExitCode.OK


@pytest.mark.parametrize(
    ("earlier", "code", "verdict"),
    [
        (0, ExitCode.DIVERGED, ExitCode.BROKEN),
        (0, ExitCode.SYMPTOM, ExitCode.BROKEN),
        (0, ExitCode.UNHEALTHY, ExitCode.BROKEN),
        (ExitCode.SYMPTOM, ExitCode.ENVIRONMENT, ExitCode.INCOMPLETE),
    ],
)
def test_a_training_that_its_last_attempt_stopped_as_faulty_is_broken(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    earlier: int,
    code: ExitCode,
    verdict: ExitCode,
) -> None:
    run = leave(tmp_path, MIXED, MIXED, RunStatus.FAILED)
    first, last = (
        update_stage(read_record(run), "train", exit_code=int(one)).attempts[0]
        for one in (earlier, code)
    )
    write_record(run, replace(read_record(run), attempts=(first, replace(last, number=2))))
    assert diagnosed(tmp_path, capsys)[0] == verdict


def test_a_run_that_did_not_end_is_incomplete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(tmp_path, MIXED, MIXED, RunStatus.INTERRUPTED)
    assert diagnosed(tmp_path, capsys)[0] == ExitCode.INCOMPLETE
