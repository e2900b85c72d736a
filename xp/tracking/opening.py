"""Opens trackers by their names. A tracker's package is imported only when it is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xp.tracking.base import Opener, TrackedRun, Tracker


def openers(names: Sequence[str]) -> dict[str, Opener]:
    """Functions that open each tracker. Nothing is imported before such a call."""
    return {name: _OPENERS[name] for name in names}


def _wandb(run: TrackedRun) -> Tracker:
    from xp.tracking.wandb import WandbTracker

    return WandbTracker(run)


def _tensorboard(run: TrackedRun) -> Tracker:
    from xp.tracking.tensorboard import TensorboardTracker

    return TensorboardTracker(run)


_OPENERS: Mapping[str, Opener] = {"wandb": _wandb, "tensorboard": _tensorboard}
