"""Which stages of a resumed run run again: those that did not succeed, and those made from something that changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_launcher import FakeLauncher, at, ends, failing, go
from tests.support.fake_launcher import small_code as small_code
from tests.support.launching import FakePlan, plan, stage
from xp.execution.launchers.base import Context
from xp.planning.job import Stage

pytestmark = pytest.mark.usefixtures("small_code")


def of_two(train: str = "36 steps", evaluate: str = "all tasks") -> FakePlan:
    """A plan whose stages' jobs differ by a word; a config says the number of its attempt, as real ones do."""
    stages = (
        stage("train", "", train, outputs=("runs/run/model",)),
        stage("evaluate", "", evaluate, outputs=("runs/run/attempt_1/evaluation",)),
    )
    return plan(*stages)


def writing(*failed: str) -> FakeLauncher:
    """Writes what is promised, but for the stages that fail."""

    def play(made: Stage, context: Context) -> int:
        if made.name in failed:
            return 9
        for name in made.job.outputs:
            (context.outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (context.outputs / name).write_text(context.key(made.name))
        return 0

    return FakeLauncher(play)


def test_a_stage_that_succeeded_is_not_run_again(tmp_path: Path) -> None:
    failing(at(of_two(), 1), tmp_path, writing("evaluate"))
    launcher = writing()
    said = []
    record = go(at(of_two(), 2), tmp_path, launcher, echo=said.append)
    assert launcher.submitted == ["run/2/evaluate"]
    assert ends(record) == {"train": ("cached", None), "evaluate": ("succeeded", 0)}
    assert said == ["xp: train: done in attempt_1, skipped\n"]
    assert (tmp_path / "runs/run/model").read_text() == "run/1/train"


def test_it_is_when_its_job_changed_or_its_output_is_gone(tmp_path: Path) -> None:
    failing(at(of_two(), 1), tmp_path, writing("evaluate"))
    launcher = writing("evaluate")
    failing(at(of_two(train="50 steps"), 2), tmp_path, launcher)
    assert launcher.submitted == ["run/2/train", "run/2/evaluate"]
    (tmp_path / "runs/run/model").unlink()
    launcher = writing()
    go(at(of_two(train="50 steps"), 3), tmp_path, launcher)
    assert launcher.submitted == ["run/3/train", "run/3/evaluate"]


def test_what_comes_after_a_stage_that_ran_again_runs_again(tmp_path: Path) -> None:
    """Also where the attempt was cut between the two: the evaluation is of the model before."""
    go(at(of_two(), 1), tmp_path, writing())
    failing(at(of_two(train="50 steps"), 2), tmp_path, writing("evaluate"))
    file = tmp_path / "runs/run/run.json"
    file.write_text(file.read_text().replace('"status": "failed"', '"status": "pending"'))
    launcher = writing()
    go(at(of_two(train="50 steps"), 3), tmp_path, launcher)
    assert launcher.submitted == ["run/3/evaluate"]


def played_in_training(attempt: int, *failed: str) -> tuple[FakePlan, FakeLauncher]:
    """A plan whose training makes the evaluation's result too, and a launcher that plays it."""
    train, evaluate = at(of_two(), attempt).stages
    (file,) = evaluate.job.outputs
    made = replace(plan(train, replace(evaluate, done=file, made_in="train")), attempt=attempt)

    def play(stage: Stage, context: Context) -> int:
        if stage.name in failed:
            return 9
        for name in ("runs/run/model", file):
            (context.outputs / name).parent.mkdir(parents=True, exist_ok=True)
            (context.outputs / name).write_text("{}")
        return 0

    return made, FakeLauncher(play)


def test_an_evaluation_played_by_the_training_is_kept_with_it(tmp_path: Path) -> None:
    (one, launcher) = played_in_training(1)
    said = []
    record = go(one, tmp_path, launcher, echo=said.append)
    assert launcher.submitted == ["run/1/train"]
    assert ends(record) == {"train": ("succeeded", 0), "evaluate": ("succeeded", None)}
    assert said == ["xp: evaluate: done in the train stage, skipped\n"]
    two, launcher = played_in_training(2)
    record = go(two, tmp_path, launcher)
    assert launcher.submitted == []
    assert ends(record) == dict.fromkeys(("train", "evaluate"), ("cached", None))
