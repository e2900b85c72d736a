"""An update that is not a finite number, under the real GRPOTrainer: the run stops before it, or goes on without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.trl_groups import are_equal, make, weights
from xp.errors import ExitCode, XpError


def test_foreign_log_probabilities_stop_the_run_before_the_weights(
    tmp_path: Path,
) -> None:
    trainer = make(tmp_path, "stop", 2, set(), "training.max_logprob_gap=0.1")
    before = weights(trainer)
    with pytest.raises(
        XpError, match=r"rollout step 1: the engine's log-probabilities .* differ"
    ) as caught:
        trainer.train()
    assert caught.value.code is ExitCode.DIVERGED
    assert are_equal(before, weights(trainer))


def test_a_nan_loss_stops_the_run_before_the_weights(tmp_path: Path) -> None:
    trainer = make(tmp_path, "stop", 3, {0})
    before = weights(trainer)
    with pytest.raises(XpError, match="rollout step 1: loss nan") as caught:
        trainer.train()
    assert caught.value.code is ExitCode.DIVERGED
    assert "on_nonfinite=skip" in str(caught.value)
    assert are_equal(before, weights(trainer))


def test_a_skipped_update_changes_no_weight(tmp_path: Path) -> None:
    trainer = make(tmp_path, "skip", 3, {1})
    seen: list[list[Any]] = []
    from transformers import TrainerCallback

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seen.append(weights(trainer))

    before = weights(trainer)
    trainer.add_callback(Look())
    trainer.train()
    assert not are_equal(before, seen[0])
    assert are_equal(seen[0], seen[1]), (
        "the update was to be left out, weight decay and momentum included"
    )
    assert not are_equal(seen[1], seen[2])
    assert all(bool(weight.isfinite().all()) for weight in seen[2])
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["training/updates"] for line in lines] == [1.0, 0.0, 1.0]
    assert [line.get("training/loss") is not None for line in lines] == [True, False, True]


def test_an_update_of_equal_rewards_is_none(tmp_path: Path) -> None:
    make(tmp_path, "stop", 2, set(), rewards=(0.5,) * 4).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["training/updates"], line["training/grad_norm"]) for line in lines] == [
        (0.0, 0.0)
    ] * 2
