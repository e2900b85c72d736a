"""A run's best model may be that of its last step, whose evaluation is that of the trained model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.place import REWARDS
from tests.support.child import json_lines
from tests.support.embedded_default import SMALL, the_run, xp
from xp.episode.metrics_file import read_metrics

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def test_the_model_of_the_last_step_can_be_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    rule = ("evaluation.every=1", "evaluation.keep_best=true", "evaluation.before_training=false")
    few = ("training.num_steps=1", "env.train.num_tasks=2", "env.held_out.num_tasks=2")
    done = xp(tmp_path, "name=first", *SMALL, *few, *rule)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = the_run(tmp_path)
    (during,) = read_metrics(run / "metrics.jsonl", "evaluate_during")
    (after,) = [line for line in json_lines(run / "metrics.jsonl") if line["stage"] == "evaluate"]
    name = "reward/avg_raw_reward"
    assert during["step"] == 1
    assert during[f"evaluation/during/{name}"] == after[f"evaluation/after/{name}"]
    best = json.loads((run / "checkpoints/best/best.json").read_text())
    assert (best["step"], best["reward"]) == (1, after[f"evaluation/after/{name}"])
    assert (run / "checkpoints/best/model.safetensors").is_file()
    played = (run / "attempt_1/train/trajectories").glob("*during*")
    assert not list(played)
