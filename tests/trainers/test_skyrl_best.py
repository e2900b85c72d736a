"""SkyRL's own loop on the CPU: the model of the best evaluation is kept, and training ends where none is better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.test_skyrl_rehearsal import outputs, run
from xp.episode.metrics_file import read_metrics

__all__ = ["outputs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
BEST = ("evaluation.every=1", "evaluation.keep_best=true", "training.num_steps=4")


def test_an_untrained_model_that_gets_no_better_is_kept_once_and_training_ends_by_patience(outputs: Path) -> None:
    done = run(outputs, "train", 1, *BEST, "evaluation.patience=1", name="best")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    place = outputs / "runs/best"
    lines = read_metrics(place / "metrics.jsonl", "evaluate_during")
    rewards = {line["step"]: line["evaluation/during/reward/avg_raw_reward"] for line in lines}
    best = json.loads((place / "checkpoints/best/best.json").read_text())
    last = max(rewards)
    assert best["reward"] == max(rewards.values())
    assert best["step"] == min(step for step, reward in rewards.items() if reward == best["reward"])
    assert last == best["step"] + 1 < 4
    assert [line["step"] for line in read_metrics(place / "metrics.jsonl", "train")] == list(range(1, last + 1))
    assert (place / "checkpoints/best/model.safetensors").is_file()
    assert (place / "model/config.json").is_file()
    assert (place / f"checkpoints/global_step_{last}").is_dir()
