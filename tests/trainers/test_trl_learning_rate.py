"""Rates of a warm-up under the real GRPOTrainer: applied and reported."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.trl_groups import are_equal, make, weights
from xp.worker.learning_rate import learning_rate_factor


def applied_and_reported(
    trainer: Any, directory: Path, checkpoint: str | None = None
) -> list[float]:
    """Learning rates of the updates of a training, which the metrics report."""
    applied: list[float] = []
    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(
        lambda one, *_: applied.append(one.param_groups[0]["lr"])
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/learning_rate"] for line in lines[-len(applied) :]] == pytest.approx(
        applied
    )
    return applied


def test_the_first_update_of_a_warm_up_changes_the_model(tmp_path: Path) -> None:
    trainer = make(tmp_path, "stop", 3, set(), warmup_updates=2)
    before = weights(trainer)
    assert applied_and_reported(trainer, tmp_path) == pytest.approx([0.005, 0.01, 0.01])
    assert not are_equal(before, weights(trainer))


def test_a_longer_training_goes_on_with_the_rates_of_its_length(tmp_path: Path) -> None:
    keep = {"save_strategy": "steps", "save_steps": 1}
    make(tmp_path, "stop", 2, set(), schedule="cosine", **keep).train()
    longer = make(tmp_path, "stop", 4, set(), schedule="cosine", **keep)
    expected = [
        0.01
        * learning_rate_factor(
            "cosine",
            0,
            4,
            update,
        )
        for update in (2, 3)
    ]
    assert applied_and_reported(longer, tmp_path, str(tmp_path / "checkpoint-2")) == pytest.approx(
        expected
    )


def test_a_decay_ends_at_the_minimum(tmp_path: Path) -> None:
    rates = ("training.learning_rate=0.01", "training.min_learning_rate=0.004")
    trainer = make(tmp_path, "stop", 3, set(), schedule="linear", overrides=rates)
    assert applied_and_reported(trainer, tmp_path) == pytest.approx([0.01, 0.008, 0.006])


def test_sgd_has_no_moments(tmp_path: Path) -> None:
    rates = ("training.optimizer=sgd", "training.weight_decay=0", "training.max_grad_norm=1000")
    trainer = make(tmp_path, "stop", 1, set(), overrides=rates)
    trainer.create_optimizer()
    before = weights(trainer)
    gradients = []
    trainer.optimizer.register_step_pre_hook(
        lambda *_: gradients.extend(one.grad.clone() for one in trainer.model.parameters())
    )
    trainer.train()
    moved = [old - 0.01 * gradient for old, gradient in zip(before, gradients, strict=True)]
    errors = [
        float((new - one).abs().max()) for new, one in zip(weights(trainer), moved, strict=True)
    ]
    assert max(errors) < 1e-7
    assert all("momentum_buffer" not in state for state in trainer.optimizer.state.values())


def test_adamw_8bit_keeps_moments_of_one_byte(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="a package of runtimes/trl alone")
    import torch

    trainer = make(
        tmp_path,
        "stop",
        1,
        set(),
        overrides=("training.optimizer=adamw_8bit",),
    )
    before = weights(trainer)
    trainer.train()
    states = trainer.optimizer.state.values()
    assert {one["state1"].dtype for one in states if one["state1"].numel() >= 4096} >= {torch.uint8}
    assert not are_equal(before, weights(trainer))
