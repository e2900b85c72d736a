"""Evaluations of a run: its model, a checkpoint, its model before training, on other tasks; and two runs compared."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import leave_evaluation
from tests.support.tiny import tokenizer_and_model
from xp.__main__ import main
from xp.composition import compose, to_yaml
from xp.errors import ExitCode
from xp.execution.held_out import held_out
from xp.execution.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    write_record,
)
from xp.planning.stages import prepare_config
from xp.tasks.prepare import prepare

TASKS = ("env.train.num_tasks=1", "env.held_out.num_tasks=12")
HERE = Provenance("0.1.0", "3.12", None, None, {})


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An outputs root with the run R: its base model, the trained one, a checkpoint of step 5, an evaluation."""
    root = tmp_path_factory.mktemp("outputs")
    base = root / "base"
    tokenizer, model = tokenizer_and_model()
    tokenizer.save_pretrained(base)
    model.save_pretrained(base)
    limits = (
        "training.max_prompt_tokens=400",
        "training.max_tokens_per_turn=4",
        "training.max_response_tokens=8",
    )
    own = (
        "model=hf",
        f"model.path={base}",
        "model.dtype=float32",
        "model.dialect=hermes",
        "model.tools_prompt=system",
    )
    spec = compose(["env=multiply", *TASKS, *own, *limits, f"outputs={root}"])
    prepare(prepare_config(spec), os.environ, root)
    run = root / "runs" / "R"
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(to_yaml(spec))
    record = RunRecord("R", RunStatus.PENDING, ())
    record = close_attempt(
        begin_attempt(record, ["prepare", "train", "evaluate"], HERE), RunStatus.SUCCEEDED
    )
    write_record(run, record)
    updates = spec.training.updates_per_step * spec.training.passes_per_step
    for place in (run / "model", run / "checkpoints" / f"checkpoint-{5 * updates}"):
        shutil.copytree(base, place)
    before, after = (
        {f"multiply/test/{number}": [float(number < 10 * share)] for number in range(10)}
        for share in (0.2, 0.8)
    )
    leave_evaluation(run, before=before, after=after)
    return root


def results_in(outputs: Path) -> dict[str, Any]:
    files = [json.loads(file.read_text()) for file in (outputs / "evaluations").glob("*/eval.json")]
    return {one["model"]["name"]: one for one in files}


def test_a_run_its_checkpoint_and_untrained_model_play_the_same_tasks(
    outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "run=R,R@5,R@0", f"outputs={outputs}", "evaluation.num_tasks=3"]
    assert main(words) == 0
    found = results_in(outputs)
    assert set(found) == {"R", "R@5", "R@0"}
    assert len({tuple(sorted(one["tasks"])) for one in found.values()}) == 1
    assert {one["run"] for one in found.values()} == {"R"}
    before = (outputs / "runs" / "R" / "run.json").read_bytes()
    assert main(["runs", "show", "R", f"outputs={outputs}"]) == 0
    assert main(["runs", "list", f"outputs={outputs}"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("evaluation multiply-R-0-") == 2  # beside the run, in both views
    assert (outputs / "runs" / "R" / "run.json").read_bytes() == before
    assert held_out(outputs / "runs" / "R")["after"].reward_mean == 0.8


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run=R@7"], ExitCode.RUN_DIR, "its checkpoints: checkpoint-"),
        (["run=R", "training.learning_rate=1.0"], ExitCode.CONFIG, "an evaluation of a run sets"),
        (["run=../x"], ExitCode.RUN_DIR, "not the id of a run"),
    ],
)
def test_what_a_run_does_not_have_is_refused_with_what_it_has(
    outputs: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: ExitCode, told: str
) -> None:
    assert main(["eval", *words, f"outputs={outputs}"]) == code
    assert told in capsys.readouterr().err
