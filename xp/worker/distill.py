"""On-policy distillation: advantages of tokens from a teacher's log-probabilities, one formula for all trainers."""

from __future__ import annotations

from typing import Any, Final

from xp.spec import Distill

DISTILL_KL: Final = "training/distill_kl"


def distilled(
    rule: Distill, of_reward: Any, teacher: Any, policy: Any, mask: Any
) -> tuple[Any, Any]:
    """Advantages of the tokens, 0 where nothing is trained, and the sum of the policy's gaps to the teacher.

    Args:
        rule: a spec's `algorithm.distill`.
        of_reward: advantages from the rewards, (episodes, tokens) or (episodes, 1).
        teacher: (episodes, tokens), the teacher's log-probabilities.
        policy: the same shape, the policy's before the update.
        mask: the same shape, above 0 for trained tokens.
    """
    is_trained = mask > 0
    gap = (policy - teacher).detach().masked_fill(~is_trained, 0.0)
    base = of_reward * is_trained if rule.beside_reward else 0.0
    return base - rule.coef * gap, gap.sum()
