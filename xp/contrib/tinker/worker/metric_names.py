"""Metrics of a training on a service."""

from __future__ import annotations

from typing import Final

from xp.contrib.tinker.worker.cost_limit import COST
from xp.worker.step_log import MEASURED

SOURCES: Final[dict[str, str]] = {
    **{name: f"xp, {remark}" if remark else "xp" for name, remark in MEASURED.items()},
    "training/loss": "xp, of the service's log-probabilities and the spec's formula",
    "training/grad_norm": "`grad_norm` of optim_step, where the service returns it",
    "training/learning_rate": "xp",
    "training/clip_fraction": "xp",
    "training/kl": "xp, only with `algorithm.use_kl_in_reward`",
    "training/logprob_gap": "xp",
    "training/staleness": "xp, only with `training.max_staleness`",
    **dict.fromkeys(["cost/prompt_tokens", "cost/sampled_tokens", "cost/trained_tokens"], "xp"),
    COST: "xp, only with `hardware.usd_per_million_tokens`",
    "time/step_s": "xp, from the end of the step before, or of the evaluation after that",
    "time/logprobs_s": "xp",
    "time/update_s": "xp",
    "time/weight_sync_s": "xp",
}
"""Metric -> its source."""
