"""The end of a training at `training.max_hours` or `training.budget_usd`, after a step with a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from xp.episode.metrics_file import metrics_lines
from xp.errors import ExitCode, XpError
from xp.lib.nested import grouped
from xp.spec import RunSpec
from xp.worker.stage import StageConfig


def check_time(config: StageConfig, step: int, root: Path = Path()) -> None:
    """Ends a training after a rollout step with a checkpoint, if the next one would come after its limit.

    The limit is of all attempts together, without the evaluate stage.

    Args:
        config: of the train stage.
        step: the finished step, or that from which a new attempt resumes; it is not the last one.
        root: the outputs root.

    Raises:
        XpError: (LIMIT) the training must end.
    """
    limit = limit_of(config.spec)
    every = config.spec.training.checkpoint_every
    attempt = config.places.attempt
    if limit is None or step == 0 or step % every:
        return
    lines = grouped(
        (line["attempt"], line)
        for line in metrics_lines(root / config.places.metrics)
        if line["stage"] == "train" and line.get("time/step_s") is not None
    )
    if not lines:
        return
    used = sum(each[-1]["time"] - _began(each[0]) for each in lines.values())
    if attempt in lines:
        used += time.time() - lines[attempt][-1]["time"]
    checkpoint_s = every * median(line["time/step_s"] for line in lines[max(lines)])
    hours, key = limit
    if used + checkpoint_s > hours * 3600:
        raise XpError(
            f"the training ends after step {step}, which has a checkpoint: it took {used / 3600:.3g} h, and the"
            f" next checkpoint, about {checkpoint_s / 3600:.2g} h later, would be beyond {key}\n"
            "continue it by resume=RUN with a larger value",
            ExitCode.LIMIT,
        )


def limit_of(spec: RunSpec) -> tuple[float, str] | None:
    """The stricter of the limits of time and of money: hours, and key and value of the spec. None means that there is
    none."""
    training = spec.training
    price = spec.hardware.usd_per_hour
    limits = []
    if training.max_hours is not None:
        limits.append((training.max_hours, f"training.max_hours={training.max_hours:g}"))
    if training.budget_usd is not None and price is not None:
        key = f"training.budget_usd={training.budget_usd:g} at {price:g} USD an hour"
        limits.append((training.budget_usd / price, key))
    return min(limits, default=None)


def _began(line: Mapping[str, Any]) -> float:
    """Begin of the attempt with this first line, in seconds of the epoch."""
    return float(line["time"] - line["time/step_s"] - (line.get("time/start_s") or 0.0))
