"""On-policy distillation: advantages of tokens from a teacher's log-probabilities, one formula for all trainers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

DISTILL_KL: Final = "training/distill_kl"


@dataclass(frozen=True)
class Distillation:
    """A spec's `algorithm.distill`."""

    teacher: str
    """Hugging Face id or directory; with `url` its name on the server."""
    url: str | None
    key: str | None
    """Variable with the server's key."""
    coef: float
    beside_reward: bool

    def advantages(self, of_reward: Any, teacher: Any, policy: Any, mask: Any) -> tuple[Any, Any]:
        """Advantages of the tokens, 0 where nothing is trained, and the sum of the policy's gaps to the teacher.

        Args:
            of_reward: advantages from the rewards, (episodes, tokens) or (episodes, 1).
            teacher: (episodes, tokens), the teacher's log-probabilities.
            policy: the same shape, the policy's before the update.
            mask: the same shape, above 0 for trained tokens.
        """
        is_trained = mask > 0
        gap = (policy - teacher).detach().masked_fill(~is_trained, 0.0)
        base = of_reward * is_trained if self.beside_reward else 0.0
        return base - self.coef * gap, gap.sum()
