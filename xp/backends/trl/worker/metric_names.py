"""Metrics of TRL's training: TRL's names for them, and how xp measures the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.worker.distill import DISTILL_KL
from xp.worker.importance import OUTSIDE, SAMPLE_SIZE

NATIVE: Final[Mapping[str, str]] = {
    "loss": "training/loss",
    "grad_norm": "training/grad_norm",
    "learning_rate": "training/learning_rate",
    "kl": "training/kl",
    "entropy": "training/entropy",
    "clip_ratio/region_mean": "training/clip_fraction",
    "cispo_clip_ratio": "training/clip_fraction",
}
"""TRL's name -> xp's."""
MEASURED: Final[Mapping[str, str]] = {
    "training/tokens": "",
    "training/logprob_gap": "only with vLLM",
    OUTSIDE: "only with `algorithm.importance_correction` or `importance_mask`",
    SAMPLE_SIZE: "only with `algorithm.importance_correction` or `importance_mask`",
    DISTILL_KL: "only with `algorithm.distill`",
    "training/staleness": "only with `training.max_staleness`",
    "training/updates": "",
    "time/start_s": "",
    "time/rollout_s": "",
    "time/step_s": "from the end of the step before, or of the evaluation after that",
}
"""Metrics that xp measures itself -> a remark."""
