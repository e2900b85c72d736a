"""The end of a training at `training.max_hours` or `training.budget_usd`, after a step with a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from xp.episode.metrics_file import metrics_lines
from xp.errors import ExitCode, XpError
from xp.spec import RunSpec, Training


@dataclass(frozen=True)
class TimeLimit:
    """Largest time of a training, of all its attempts together, without the evaluate stage."""

    seconds: float
    key: str
    """Key and value of the spec, for the message."""
    training: Training
    """The spec's; the training ends only after a step with a checkpoint."""

    @staticmethod
    def of(spec: RunSpec) -> TimeLimit | None:
        """The stricter of the limits of time and of money. None means that there is none."""
        training, price = spec.training, spec.hardware.usd_per_hour
        limits = []
        if training.max_hours is not None:
            limits.append((training.max_hours, f"training.max_hours={training.max_hours:g}"))
        if training.budget_usd is not None and price is not None:
            key = f"training.budget_usd={training.budget_usd:g} at {price:g} USD an hour"
            limits.append((training.budget_usd / price, key))
        if not limits:
            return None
        hours, key = min(limits)
        return TimeLimit(hours * 3600, key, training)

    def check(self, step: int, metrics: Path, attempt: int) -> None:
        """Ends the training after a rollout step, if its next checkpoint would come after the limit.

        Args:
            step: the finished step, or that from which a new attempt resumes; it is not the last one.
            metrics: the run's metrics.jsonl.
            attempt: number of this attempt.

        Raises:
            XpError: (LIMIT) the training must end.
        """
        every = self.training.checkpoint_every
        if step % every:
            return
        lines: dict[int, list[Mapping[str, Any]]] = {}
        for line in metrics_lines(metrics):
            if line["stage"] == "train" and line.get("time/step_s") is not None:
                lines.setdefault(line["attempt"], []).append(line)
        if not lines:
            return
        used = sum(each[-1]["time"] - _began(each[0]) for each in lines.values())
        if attempt in lines:
            used += time.time() - lines[attempt][-1]["time"]
        checkpoint_s = every * median(line["time/step_s"] for line in lines[max(lines)])
        if used + checkpoint_s > self.seconds:
            raise XpError(
                f"the training ends after step {step}, which has a checkpoint: it took {used / 3600:.3g} h, and the"
                f" next checkpoint, about {checkpoint_s / 3600:.2g} h later, would be beyond {self.key}\n"
                "resume=RUN with a larger value continues it",
                ExitCode.LIMIT,
            )


def _began(line: Mapping[str, Any]) -> float:
    """Begin of the attempt with this first line, in seconds of the epoch."""
    return float(line["time"] - line["time/step_s"] - (line.get("time/start_s") or 0.0))
