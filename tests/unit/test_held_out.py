"""What a run does with what is held out, and without anything held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.evaluations import leave_evaluation
from tests.support.fake_provider import FakeWorld
from tests.support.fake_session import RULES
from tests.support.sections import replace, run_spec
from xp.composition import compose
from xp.envs.config import EpisodeConfig
from xp.episode.evaluation import read_evaluation
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.execution.held_out import held_out
from xp.planning.plan import build_again, build_plan, build_preparation
from xp.planning.stages import prepare_config
from xp.tasks.manifest import TABLE
from xp.tasks.prepare import prepare
from xp.tasks.row import read_rows
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.evaluate import RunEvaluation
from xp.worker.places import RunPaths

ON = {
    "trl": ("env=whodunit_mini",),
    "skyrl": ("env=whodunit", "model=qwen2.5-3b-instruct", "backend=skyrl", "hardware=a100x4"),
    "slime": ("env=whodunit", "model=qwen3-4b", "backend=slime", "hardware=h100x8"),
}


@pytest.mark.parametrize("backend", ON)
def test_with_nothing_held_out_the_train_stage_is_the_last(backend: str) -> None:
    spec = compose([*ON[backend], "env.held_out=null"])
    assert build_plan(spec, "r").stages[-1].name == "train"
    assert prepare_config(spec).members[ON[backend][0].partition("=")[2]].env.held_out is None


def test_a_mix_is_evaluated_on_the_members_that_hold_something_out() -> None:
    mix = compose(["env=whodunit_mini_multiply", "env.members.multiply.held_out=null"])
    assert build_plan(mix, "r").stages[-1].name == "evaluate"


def test_only_a_training_asks_preparation_for_tasks_to_train_on() -> None:
    spec = compose([*ON["trl"]])
    plans = {
        True: [
            build_plan(spec, "r"),
            build_again(spec, "r", 2, ["prepare", "model", "train", "evaluate"]),
        ],
        False: [build_preparation(spec, "r")],
    }
    for trains, made in plans.items():
        for plan in made:
            (config,) = (
                text
                for path, text in plan.stages[0].job.files.items()
                if path.endswith("/config.json")
            )
            assert f'"trains": {str(trains).lower()}' in config


def test_the_plan_refuses_to_train_on_what_is_there_to_be_evaluated(tmp_path: Path) -> None:
    with pytest.raises(
        XpError, match=r"env\.train\.split: nothing to train on: .*\nplay it by `python -m xp eval`"
    ) as error:
        build_plan(compose(["env=gsm1k", f"outputs={tmp_path}"]), "r")
    assert error.value.code is ExitCode.PLAN
    mix = compose(["env=[gsm1k,whodunit_mini]", f"outputs={tmp_path}"])
    assert build_plan(mix, "r").stages


def test_a_result_on_tasks_that_are_trained_on_carries_its_label(tmp_path: Path) -> None:
    for num_trained_on, label in ((0, ""), (3, "3 of 10 evaluation tasks are trained on as well")):
        record = {"num_trained_on": num_trained_on, "num_held_out": 10}
        leave_evaluation(tmp_path, after={"m/test/0": [0.5]}, held_out={"m": record})
        assert held_out(tmp_path)["after"].label == label


def test_the_evaluate_stage_records_the_content_of_the_tasks_that_it_played(tmp_path: Path) -> None:
    first, played = evaluation(tmp_path, 1)
    first.add("after", played[1:])
    found = read_evaluation(tmp_path / "runs/r/attempt_1/evaluate/after/eval.json")
    (file,) = tmp_path.rglob(TABLE)
    hashes = {row.task_id: row.task_hash for row in read_rows(file)}
    assert {task: one.hash for task, one in found.tasks.items()} == {
        episode.task_id: hashes[episode.task_id] for episode in played[1:]
    }
    assert found.scoring["fake"]["env.reward.reduction"] == RULES.reward.reduction


def evaluation(
    root: Path, attempt: int, num_tasks: int | None = None
) -> tuple[RunEvaluation, list[EpisodeFacts]]:
    """The evaluation of a run's attempt, and the episodes of a model."""
    (root / "runs/r").mkdir(parents=True, exist_ok=True)
    tasks = prepare(
        FakeWorld(root, splits={"train": 5, "test": 4}).config(),
        {},
        root,
    )
    (root / "episode.json").write_text(EpisodeConfig({"fake": RULES}).to_json())
    places = RunPaths("runs/r", attempt, str(tasks.path))
    models = {"before": "m", "after": "runs/r/model"}
    spec = run_spec(evaluation__num_tasks=num_tasks)
    config = EvaluateConfig(spec=spec, places=places, stage="evaluate", models=models, server=None)
    outcome = EpisodeResult(EpisodeStatus.FINISHED, 1.0, (1.0,), 1, 1, 0)
    played = [EpisodeFacts("fake", row.task_id, outcome, 3) for row in tasks.rows("held_out")]
    return RunEvaluation(config, root / "episode.json", root), played


def test_only_the_result_before_training_is_of_earlier_attempts(tmp_path: Path) -> None:
    first, played = evaluation(tmp_path, 1)
    first.add("before", played)
    first.add("after", played)
    assert not first.is_due("before")
    second, _ = evaluation(tmp_path, 2)
    assert (second.is_due("before"), second.is_due("after")) == (False, True)
    second.add("after", played)
    assert len(read_evaluation(tmp_path / "runs/r/attempt_2/evaluate/before/eval.json").tasks) == 4
    lines = [
        json.loads(line) for line in (tmp_path / "runs/r/metrics.jsonl").read_text().splitlines()
    ]
    assert [(line["attempt"], "evaluation/before/episodes/num" in line) for line in lines] == [
        (1, True),
        (1, False),
        (2, False),
    ]


def test_the_result_of_another_evaluation_does_not_count(tmp_path: Path) -> None:
    first, played = evaluation(tmp_path, 1)
    first.add("before", played)
    assert evaluation(tmp_path, 2, num_tasks=2)[0].is_due("before")


def test_an_evaluation_with_too_many_void_episodes_has_no_result(tmp_path: Path) -> None:
    first, played = evaluation(tmp_path, 1)
    void = [
        replace(one, outcome=replace(one.outcome, status=EpisodeStatus.VOID, reward=None))
        for one in played
    ]
    with pytest.raises(XpError, match="void") as error:
        first.add("before", void)
    assert error.value.code is ExitCode.UNHEALTHY
    assert first.is_due("before")
