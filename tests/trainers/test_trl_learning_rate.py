"""Rates of a warm-up under the real GRPOTrainer: applied and reported."""

import json
from pathlib import Path

import pytest

from tests.trainers.test_trl_nonfinite import are_equal, make, weights
from xp.worker.learning_rate import learning_rate_factor


def test_the_first_update_of_a_warm_up_changes_the_model(
    tmp_path: Path,
) -> None:
    trainer = make(tmp_path, "stop", 3, set(), warmup_updates=2)
    before, applied = weights(trainer), []
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(lambda one, *_: applied.append(one.param_groups[0]["lr"]))
    trainer.train()
    assert applied == pytest.approx([0.005, 0.01, 0.01])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/learning_rate"] for line in lines] == pytest.approx(applied)
    assert not are_equal(before, weights(trainer))


def test_a_run_of_one_update_learns_although_it_warms_up(tmp_path: Path) -> None:
    trainer = make(tmp_path, "stop", 1, set(), warmup_updates=5)
    before = weights(trainer)
    trainer.train()
    assert not are_equal(before, weights(trainer))


def test_a_longer_training_goes_on_with_the_rates_of_its_length(tmp_path: Path) -> None:
    keep = {"save_strategy": "steps", "save_steps": 1}
    make(tmp_path, "stop", 2, set(), schedule="cosine", **keep).train()
    longer = make(tmp_path, "stop", 4, set(), schedule="cosine", **keep)
    applied: list[float] = []
    longer.create_optimizer()
    longer.optimizer.register_step_pre_hook(lambda one, *_: applied.append(one.param_groups[0]["lr"]))
    longer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    expected = [0.01 * learning_rate_factor("cosine", 0, 4, update) for update in (2, 3)]
    assert applied == pytest.approx(expected)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/learning_rate"] for line in lines[2:]] == pytest.approx(expected)
