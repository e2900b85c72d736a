"""Checks that an engine has the trainer's weights (`training.max_logprob_gap`)."""

from __future__ import annotations

import math

from xp.errors import ExitCode, XpError


def check_gap(step: int, gap: float, limit: float | None) -> None:
    """Compares a step's gap with its limit.

    Args:
        step: rollout step, from 1.
        gap: mean difference, over the step's tokens, between the engine's and the trainer's log-probabilities.
        limit: `training.max_logprob_gap`; None: no limit.

    Raises:
        XpError: (DIVERGED) the gap is larger.
    """
    if limit is None or gap <= limit or math.isnan(gap):
        return
    raise XpError(
        f"rollout step {step}: the engine's log-probabilities of the tokens that it wrote differ from the trainer's by"
        f" {gap:.2g} a token, more than training.max_logprob_gap={limit:g}: it does not write with the weights that are"
        " trained\n"
        "usual causes: weights of a layer that are not sent, an update that did not arrive, tied embeddings that came"
        " apart, another dtype in the engine; usual gaps: 1e-6 in float32, 0.001 to 0.03 in bfloat16, more in mixtures"
        " of experts; training.max_logprob_gap=null only records it",
        ExitCode.DIVERGED,
    )
