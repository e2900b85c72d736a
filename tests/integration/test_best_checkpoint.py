"""The whole of a run that keeps its best model and stops by patience, as a user starts it; resumed, and played."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.child import ended
from xp.episode.metrics_file import read_metrics

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

STEADY = (
    *(
        "env.train.num_tasks=8",
        "env.held_out.num_tasks=6",
        "training.prompts_per_step=2",
        "training.group_size=2",
    ),
    *("training.micro_batch_size=4", "training.checkpoint_every=2", "training.warmup_updates=0"),
    # Greedy episodes of a model that hardly changes: every evaluation has the same reward.
    *(
        "evaluation.temperature=0",
        "training.learning_rate=1e-12",
        "evaluation.before_training=false",
    ),
    *(
        "evaluation.every=1",
        "evaluation.keep_best=true",
        "evaluation.patience=2",
        "training.num_steps=6",
    ),
)


def xp(directory: Path, *words: str) -> str:
    command = [sys.executable, "-m", "xp", *words]
    done = ended(command, cwd=directory, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_patience_stops_training_and_the_best_model_is_played(tmp_path: Path) -> None:
    xp(tmp_path, *STEADY)
    (run,) = (tmp_path / "outputs/runs").iterdir()
    assert evaluated(run) == [1, 2, 3]
    assert json.loads((run / "checkpoints/best/best.json").read_text())["step"] == 1
    assert (
        "training stops at step 3: the last 2 evaluations"
        in (run / "attempt_1/train/log.txt").read_text()
    )
    assert (run / "checkpoints/checkpoint-3/digests.json").is_file()
    assert (run / "model/model.safetensors").is_file()
    xp(tmp_path, f"resume={run.name}", "evaluation.patience=3")
    assert evaluated(run) == [1, 2, 3, 4]  # two were not better before, so that one more ends it
    shown = xp(tmp_path, "eval", f"run={run.name}@best", "evaluation.num_tasks=4")
    assert f"{run.name}@best" in shown.replace("\n", "")


def evaluated(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run / "metrics.jsonl", "evaluate_during")]
