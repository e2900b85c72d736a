"""Ratios at, within and beyond the bounds of importance correction, and algorithms with these bounds."""

from __future__ import annotations

import math

import torch

from xp.composition import compose
from xp.spec import Algorithm, ImportanceCorrection, ImportanceMask

PAIRS = [(weight.value, mask.value) for weight in ImportanceCorrection for mask in ImportanceMask][
    1:
]
EDGE = math.log(2)
LONG = 1000
ROWS = {
    "in bounds": [0.1, -0.2, 0.05, 0.3],
    "tokens and mean at the upper bound": [EDGE] * 4,
    "tokens and mean at the lower bound": [-EDGE] * 4,
    "product at the upper bound": [EDGE, 0, 0, 0],
    "product at the lower bound": [-EDGE, 0, 0, 0],
    "above": [EDGE + 1e-6, 0, 0, 0],
    "far above": [300, 0.1, 0, 0],
    "above any number": [800, -0.1, 0, 0],
    "far below": [-800, 0.1, 0, 0],
    "one token of a long sequence": [0] * (LONG - 1) + [8],
    "nothing from the engine": [math.nan, 0.5, 0, 0],
    "no trained token": [],
}
"""Log-ratios of the trained tokens of an episode."""


def planted() -> tuple[torch.Tensor, torch.Tensor]:
    """Gaps and masks of all rows; tokens that are not trained, between the others, have a gap of 5."""
    gaps = torch.full(
        (len(ROWS), 2 * LONG),
        5.0,
        dtype=torch.float64,
    )
    mask = torch.zeros(len(ROWS), 2 * LONG)
    for row, ratios in enumerate(ROWS.values()):
        gaps[row, : 2 * len(ratios) : 2] = torch.tensor(ratios, dtype=torch.float64)
        mask[row, : 2 * len(ratios) : 2] = 1
    return gaps, mask


def algorithm(weight: str, mask: str, lower: float = 0.5, upper: float = 2.0) -> Algorithm:
    """An algorithm with the same bounds for the weight and the mask."""
    bounds = {
        "importance_lower": lower,
        "importance_upper": upper,
        "mask_lower": lower,
        "mask_upper": upper,
    }
    own = {
        "importance_correction": ImportanceCorrection(weight),
        "importance_mask": ImportanceMask(mask),
    }
    return compose([]).algorithm.model_copy(update={**own, **bounds})
