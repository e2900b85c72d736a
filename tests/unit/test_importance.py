"""Importance weights are the formulas, in float64 with NumPy; what a plan refuses of them, and what carries them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.importance import PAIRS, ROWS, algorithm, planted
from xp.worker.importance import OUTSIDE, SAMPLE_SIZE, metrics, weigh


def level(name: str, logs: np.ndarray) -> np.ndarray:
    """Ratio of each token at a level."""
    with np.errstate(over="ignore"):
        values = {
            "none": 1.0,
            "token": np.exp(logs),
            "sequence": np.exp(logs.sum()),
            "geometric": np.exp(logs.sum() / max(1, len(logs))),
        }
    return np.broadcast_to(values[name], logs.shape)


def formula(weight: str, mask: str, ratios: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Weights of an episode's trained tokens, and which of them are beyond a bound."""
    logs = np.nan_to_num(np.array(ratios, dtype=np.float64))
    of_mask = level(mask, logs)
    is_left_out = (of_mask < 0.5) | (of_mask > 2)
    of_weight = level(
        weight.partition("_")[0], np.where(is_left_out & (mask == "token"), 0.0, logs)
    )
    outside = is_left_out | (of_weight < 0.5) | (of_weight > 2)
    return np.where(is_left_out, 0.0, np.clip(of_weight, 0.5, 2)), outside


@pytest.mark.parametrize(("weight", "left_out_by"), PAIRS)
def test_weights_and_their_metrics_are_the_formulas_at_and_beyond_the_bounds(
    weight: str, left_out_by: str
) -> None:
    gaps, mask = planted()
    weighed = weigh(algorithm(weight, left_out_by), gaps.requires_grad_(), mask)
    assert not weighed.weights.requires_grad
    assert bool(torch.isfinite(weighed.weights).all())
    all_weights = []
    all_outside = []
    for row, (name, ratios) in enumerate(ROWS.items()):
        weights, outside = formula(weight, left_out_by, ratios)
        found = weighed.weights[row, : 2 * len(ratios) : 2]
        assert found.numpy() == pytest.approx(weights, rel=1e-12), name
        assert bool((found.numpy() == 0).any()) == bool((weights == 0).any()), name
        all_weights.append(weights)
        all_outside.append(outside)
    weights = np.concatenate(all_weights)
    outside = np.concatenate(all_outside)
    found = metrics(weighed.sums())
    assert found[OUTSIDE] == pytest.approx(outside.mean())
    assert found[SAMPLE_SIZE] == pytest.approx(
        weights.sum() ** 2 / (weights**2).sum() / len(weights)
    )


def test_no_trained_token_has_no_metrics_and_no_weight_a_sample_size_of_0() -> None:
    assert metrics([0, 0, 0, 0]) == {}
    assert metrics([4, 4, 0, 0]) == {OUTSIDE: 1.0, SAMPLE_SIZE: 0.0}
