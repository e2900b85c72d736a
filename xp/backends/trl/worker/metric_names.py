"""Metrics of TRL's training: TRL's names for them, and how xp measures the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from xp.worker.step_log import MEASURED as OF_EVERY_TRAINER

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
MEASURED: Final = OF_EVERY_TRAINER | {
    "training/logprob_gap": "only with vLLM",
    "training/staleness": "only with `training.max_staleness`",
    "time/step_s": "from the end of the step before, or of the evaluation after that",
}
"""Metrics that xp measures itself -> a remark."""
