"""Learning rate of each update: one meaning of `training.lr_schedule` and `training.warmup_updates` for every trainer.

A warm-up of N begins at 1/N, so that no update is without effect: transformers' schedulers and Megatron-core's begin it
at 0, and a run of one update would end with the model that it began with.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

SCHEDULES = ("constant", "linear", "cosine")


def learning_rate_factor(schedule: str, warmup_updates: int, num_updates: int, update: int) -> float:
    """Share of the learning rate that one update has.

    With a warm-up of N, update k (from 1) has k/N until the Nth has all of it. From there `linear` and `cosine` fall so
    that the update after the last would have 0: the formulas of Megatron-core's OptimizerParamScheduler.get_lr for a
    warm-up that is one update shorter; without a warm-up also those of transformers' get_scheduler.

    Args:
        schedule: one of SCHEDULES.
        warmup_updates: N, in optimizer updates; 0: none.
        num_updates: of the whole run; constant does not need it.
        update: from 0.

    Raises:
        ValueError: the schedule is another.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"no schedule {schedule!r}; expected one of {', '.join(SCHEDULES)}")
    if update + 1 < warmup_updates:
        return (update + 1) / warmup_updates
    if schedule == "constant":
        return 1.0
    first = max(warmup_updates - 1, 0)
    past = min((update - first) / max(num_updates - first, 1), 1.0)
    return 1.0 - past if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * past))


def make_scheduler(schedule: str, optimizer: Any, warmup_updates: int, num_updates: int) -> Any:
    """The torch scheduler of a trainer that steps it after each update; raises ValueError as learning_rate_factor."""
    from torch.optim.lr_scheduler import LambdaLR

    learning_rate_factor(schedule, warmup_updates, num_updates, 0)
    return LambdaLR(optimizer, partial(learning_rate_factor, schedule, warmup_updates, num_updates))
