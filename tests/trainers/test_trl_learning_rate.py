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


def test_a_decay_ends_at_the_minimum(tmp_path: Path) -> None:
    rates = ("training.learning_rate=0.01", "training.min_learning_rate=0.004")
    trainer, applied = make(tmp_path, "stop", 3, set(), schedule="linear", overrides=rates), []
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(lambda one, *_: applied.append(one.param_groups[0]["lr"]))
    trainer.train()
    assert applied == pytest.approx([0.01, 0.008, 0.006])


def test_sgd_has_no_moments(tmp_path: Path) -> None:
    rates = ("training.optimizer=sgd", "training.weight_decay=0", "training.max_grad_norm=1000")
    trainer = make(tmp_path, "stop", 1, set(), overrides=rates)
    trainer.create_optimizer()
    before, gradients = weights(trainer), []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(one.grad.clone() for one in trainer.model.parameters())
    )
    trainer.train()
    moved = [old - 0.01 * gradient for old, gradient in zip(before, gradients, strict=True)]
    errors = [float((new - one).abs().max()) for new, one in zip(weights(trainer), moved, strict=True)]
    assert max(errors) < 1e-7
    assert all("momentum_buffer" not in state for state in trainer.optimizer.state.values())


def test_adamw_8bit_keeps_moments_of_one_byte(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="a package of runtimes/trl alone")
    import torch

    trainer = make(tmp_path, "stop", 1, set(), overrides=("training.optimizer=adamw_8bit",))
    before = weights(trainer)
    trainer.train()
    states = trainer.optimizer.state.values()
    assert {one["state1"].dtype for one in states if one["state1"].numel() >= 4096} >= {torch.uint8}
    assert not are_equal(before, weights(trainer))
