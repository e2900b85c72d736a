"""Learning rate of each update: one meaning of `lr_schedule`, `min_learning_rate` and `warmup_updates` everywhere.

A warm-up of N begins at 1/N, so that every update has an effect. The schedulers of transformers and Megatron-core begin
at 0, with which a run of one update would not change the model.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate_factor(
    schedule: str, warmup_updates: int, num_updates: int, update: int, minimum: float = 0.0
) -> float:
    """Factor of the learning rate for one update.

    With a warm-up of N, update k (from 1) has the factor k/N up to the Nth. Then `linear` and `cosine` decay so that
    the update after the last would have the minimum: the formulas of Megatron-core's OptimizerParamScheduler.get_lr for
    a warm-up that is one update shorter; without a warm-up also those of transformers' get_scheduler.

    Args:
        schedule: one of SCHEDULES.
        warmup_updates: N, in optimizer updates. 0 means no warm-up.
        num_updates: number of updates of the whole run; not used by `constant`.
        update: index of the update, from 0.
        minimum: factor at the end of the decay.
    """
    if update + 1 < warmup_updates:
        return (update + 1) / warmup_updates
    if schedule == "constant":
        return 1.0
    first = max(warmup_updates - 1, 0)
    past = min((update - first) / max(num_updates - first, 1), 1.0)
    if schedule == "linear":
        decayed = 1.0 - past
    else:
        decayed = 0.5 * (1.0 + math.cos(math.pi * past))
    return minimum + (1.0 - minimum) * decayed


def first_rate(learning_rate: float, warmup_updates: int) -> float:
    """Learning rate of the first update of a warm-up, for Megatron's own schedule, whose warm-up of N - 1 updates then
    equals xp's of N; 0 without a warm-up."""
    if warmup_updates:
        return learning_rate / warmup_updates
    return 0.0


def make_scheduler(
    schedule: str, optimizer: Any, warmup_updates: int, num_updates: int, min_learning_rate: float
) -> Any:
    """Torch scheduler for a trainer that steps it after each update, and loads its state after the optimizer's."""
    from torch.optim.lr_scheduler import LambdaLR

    class Schedule(LambdaLR):  # type: ignore[misc]
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Sets the next update's rate too: the checkpoint's rate belongs to the earlier length."""
            super().load_state_dict(state_dict)
            pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
            self._last_lr = [rate * factor(self.last_epoch) for rate, factor in pairs]
            for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
                group["lr"] = rate

    factor = partial(learning_rate_factor, schedule, warmup_updates, num_updates)
    rates = [group["lr"] for group in optimizer.param_groups]
    return Schedule(
        optimizer, [partial(factor, minimum=min_learning_rate / rate) for rate in rates]
    )
