"""TRL's own weights of the gap to the engine include both bounds, and the gap is seen whatever the ratio is to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.cases import few
from tools.parity.measure import case_of, spec_of
from tools.parity.model import make_model
from tools.parity.options import CORRECTED, Option
from tools.parity.recorded import batch
from tools.parity.trl_program import _trainer
from xp.backends.trl.worker.means import trained
from xp.worker.importance import weigh
from xp.worker.tiny_model import SHIPPED

NATIVE = ("token_truncate", "sequence_truncate")


def scored(
    scratch: Path, lower: float, upper: float, *overrides: str
) -> tuple[Any, dict[str, Any]]:
    """A trainer after one step with these bounds, and what TRL computed of the recorded batch."""
    model = scratch / "model"
    make_model(model, SHIPPED)
    option = Option("one", (*overrides, CORRECTED, "training.passes_per_step=1"))
    case = case_of(option, spec_of(option, "trl", ()))
    trainer = _trainer(case, batch(), model, scratch)
    trainer.vllm_importance_sampling_clip_min = lower
    trainer.vllm_importance_sampling_clip_max = upper
    seen: dict[str, Any] = {}
    correct = trainer._corrected

    def watching(output: dict[str, Any]) -> Any:
        seen.update({**output, "is_trained": trained(output) > 0})
        corrected = correct(output)
        seen["used"] = corrected.get("importance_sampling_ratio")
        return corrected

    trainer._corrected = watching
    trainer.train()
    return trainer, seen


@pytest.mark.parametrize("correction", few(NATIVE, 1))
def test_a_ratio_at_a_bound_is_kept_and_the_next_number_is_not(
    correction: str, tmp_path: Path
) -> None:
    own = f"algorithm.importance_correction={correction}"
    _, first = scored(tmp_path / "first", 0.0, 1e8, own)
    ratios = first["importance_sampling_ratio"]
    is_counted = (
        first["is_trained"] if ratios.shape[1] > 1 else first["is_trained"].any(1, keepdim=True)
    )
    low, high = (torch.quantile(ratios[is_counted], q, interpolation="nearest") for q in (0.2, 0.8))
    assert low < 1 < high
    gap = first["old_per_token_logps"] - first["sampling_per_token_logps"]
    for name, above_low, below_high in (
        ("at", low, high),
        ("within", low.nextafter(high), high.nextafter(low)),
    ):
        lower = float(above_low)
        upper = float(below_high)
        trainer, found = scored(tmp_path / name, lower, upper, own)
        weights = found["importance_sampling_ratio"]
        is_kept = (ratios >= lower) & (ratios <= upper)
        torch.testing.assert_close(
            weights[is_counted], ratios.clamp(lower, upper)[is_counted], rtol=0, atol=0
        )
        assert bool(is_kept[ratios == high].all()) == (name == "at")
        bounds = {"importance_lower": lower, "importance_upper": upper}
        of_xp = weigh(
            trainer._xp_algorithm.model_copy(update=bounds), gap, first["is_trained"]
        ).weights
        is_trained = first["is_trained"]
        torch.testing.assert_close(
            of_xp[is_trained], weights.expand_as(of_xp)[is_trained], rtol=1e-5, atol=1e-5
        )


def test_the_gap_to_the_engine_is_seen_when_the_ratio_is_to_the_engine(tmp_path: Path) -> None:
    trainer, _ = scored(tmp_path, 0.0, 1.0, "algorithm.ratio_from=engine")
    gaps = [
        abs(n) for one in batch() for n, m in zip(one.noise, one.trained(False), strict=True) if m
    ]
    assert trainer._xp_log._episodes["training/logprob_gap"] == pytest.approx(
        sum(gaps) / len(gaps), rel=1e-3
    )


def test_a_mask_alone_and_beside_a_weight_replaces_trls_weights(tmp_path: Path) -> None:
    mask = (
        "algorithm.importance_mask=geometric",
        "algorithm.mask_lower=0.97",
        "algorithm.mask_upper=1.05",
    )
    for name, weight in (("alone", "none"), ("both", "token_truncate")):
        trainer, found = scored(
            tmp_path / name, 0.0, 2.0, *mask, f"algorithm.importance_correction={weight}"
        )
        gap = found["old_per_token_logps"] - found["sampling_per_token_logps"]
        expected = weigh(trainer._xp_algorithm, gap, found["is_trained"]).weights
        used = found["used"]
        torch.testing.assert_close(used, expected)
        if name == "alone":
            assert {*used.unique().tolist()} == {0.0, 1.0}
        else:
            assert len(used.unique()) > 2
