"""Whole runs on the CPU against servers of the catalog's shapes, by the embedded model (made with a few updates)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.evaluations import evaluated
from xp.tasks.manifest import read_manifest

pytestmark = pytest.mark.timeout(1800)

FEW = (
    *("training.num_steps=1", "training.prompts_per_step=2", "training.group_size=2"),
    # The tiny model earns nothing here: the entropy bonus alone moves its weights.
    *(
        "training.micro_batch_size=4",
        "training.entropy_coef=0.01",
        "evaluation.num_tasks=2",
        "tracking=[]",
    ),
)


def run(
    outputs: Path, word: tuple[str, ...], env: str, look_alike: str, *overrides: str
) -> tuple[int, str]:
    served = (
        f"env={env}",
        "env.target=null",
        f"env.serve=tests.envs_under_test.catalog.{look_alike}",
    )
    command = [
        sys.executable,
        "-m",
        "xp",
        *word,
        *served,
        *FEW,
        *overrides,
        f"outputs={outputs}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def evaluation(outputs: Path) -> dict[str, Any]:
    (stage,) = outputs.glob("runs/*/attempt_1/evaluate")
    return evaluated(stage)["after"]


@pytest.mark.slow
def test_a_whole_run_says_what_was_held_out(tmp_path: Path) -> None:
    env = "whodunit"
    look_alike = "whodunit:WhoDunit"
    told = "of 100 tasks of split train, chosen by the hash of their content"
    overrides = ()
    code, text = run(tmp_path, (), env, look_alike, *overrides)
    assert code == 0, text
    assert told in text.partition("Trained")[2]
    (record,) = evaluation(tmp_path)["held_out"].values()
    assert record["num_trained_on"] == 0
    (manifest,) = (read_manifest(file.parent) for file in tmp_path.glob("tasks/*/manifest.json"))
    (held_out,) = manifest.held_out.values()
    assert held_out.num_held_out == record["num_held_out"] > 0


@pytest.mark.slow
def test_figures_on_training_tasks_are_labelled_everywhere(tmp_path: Path) -> None:
    overlap = ("env.train.num_tasks=4", "env.held_out.split=train", "env.held_out.num_tasks=4")
    code, text = run(
        tmp_path, (), "whodunit", "whodunit:WhoDunit", *overlap, "env.held_out.overlap=allowed"
    )
    assert code == 0, text
    assert "(all evaluation tasks are trained on as well)" in text
    metrics = [
        json.loads(line) for file in tmp_path.glob("runs/*/metrics.jsonl") for line in file.open()
    ]
    assert any(line.get("evaluation/after/tasks/trained_on") == 1.0 for line in metrics)
    compared = subprocess.check_output(
        [sys.executable, "-m", "xp", "runs", "compare", "--csv", f"outputs={tmp_path}"], text=True
    )
    assert "all evaluation tasks are trained on as well" in compared
