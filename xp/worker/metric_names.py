"""Metrics of a training that xp measures itself on every trainer."""

from __future__ import annotations

from typing import Final

from xp.worker.distill import DISTILL_KL
from xp.worker.importance import OUTSIDE, SAMPLE_SIZE

MEASURED: Final[dict[str, str]] = {
    "training/tokens": "",
    "training/updates": "",
    OUTSIDE: "only with `algorithm.importance_correction` or `importance_mask`",
    SAMPLE_SIZE: "only with `algorithm.importance_correction` or `importance_mask`",
    DISTILL_KL: "only with `algorithm.distill`",
    "time/start_s": "",
    "time/rollout_s": "",
}
"""Metric -> a remark."""
