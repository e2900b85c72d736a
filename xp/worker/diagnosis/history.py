"""History of a run for the rules: metrics by step, evaluations, and facts of its spec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from xp.lib.reading import is_finite
from xp.spec import Training

EARLY: Final = 3
"""Divisor of a run's length: its beginning and its end are thirds."""
FEWEST: Final = 6
"""Smallest number of steps for a statement about a trend."""

Points = list[tuple[int, float]]
"""Step and value."""


@dataclass(frozen=True)
class Facts:
    """Values of a spec that the rules need."""

    training: Training
    members: tuple[str, ...]
    """Environments of the mixture."""

    @staticmethod
    def of_spec(spec: Mapping[str, Any]) -> Facts:
        """Facts of a dumped RunSpec; raises KeyError, TypeError or ValueError for another value."""
        training = Training.model_validate_json(json.dumps(spec["training"]))
        return Facts(training, tuple(map(str, spec["env"]["members"])))

    @property
    def num_updates(self) -> int | None:
        """Optimizer updates of the whole run. None means that its epochs' steps are not known."""
        steps = self.training.num_steps
        if steps is None:
            return None
        return steps * self.training.all_updates_per_step


@dataclass(frozen=True)
class ToolUse:
    """Use of tools in the trajectories of the training."""

    num_episodes: int
    offered: frozenset[str]
    """Names of the tools in the prompts."""
    calls: Mapping[str, int]
    """Tool -> number of its calls."""
    waiting_share: float | None
    """Share of the episodes' time that the environment took. None means that it is not recorded."""
    malformed: str | None = None
    """A turn of the model whose call could not be read. None means that all could be read."""

    @property
    def num_calls(self) -> int:
        """Calls of all tools."""
        return sum(self.calls.values())


@dataclass(frozen=True)
class History:
    """History of one run."""

    lines: Sequence[Mapping[str, Any]]
    """Metrics of the training, by step."""
    facts: Facts
    evaluations: Sequence[Mapping[str, Any]] = ()
    """Evaluations while training, by step."""
    tools: ToolUse | None = None
    """Use of tools. None means that the trajectories were not read."""

    @property
    def last_step(self) -> int:
        """The last step with metrics. 0 means that none has any."""
        if self.lines:
            return int(self.lines[-1]["step"])
        return 0

    def series(self, name: str) -> Points:
        """Steps and values of a metric, for the steps that have it."""
        return points_of(self.lines, name)

    def held_out(self, name: str) -> Points:
        """Steps and values of a metric of the evaluations during training."""
        return points_of(self.evaluations, f"evaluation/during/{name}")

    def passes(self) -> Points:
        """Steps and shares of tasks with a passed episode, for any size of a group."""
        names = {
            name for line in self.lines for name in line if name.startswith("reward/avg_pass_at_")
        }
        return self.series(min(names)) if names else []


@dataclass(frozen=True)
class Change:
    """A metric's mean at the beginning and at the end."""

    before: float
    after: float
    step: int
    """The last step."""

    @property
    def by(self) -> float:
        return self.after - self.before


def change(points: Points) -> Change | None:
    """Means over the first and the last third. None means too few steps."""
    if len(points) < FEWEST:
        return None
    size = len(points) // EARLY
    values = [value for _, value in points]
    return Change(fmean(values[:size]), fmean(values[-size:]), points[-1][0])


def latest(points: Points, number: int = FEWEST) -> float | None:
    """Mean of the last `number` values. None means that there are fewer."""
    if len(points) >= number:
        return fmean(value for _, value in points[-number:])
    return None


def points_of(lines: Sequence[Mapping[str, Any]], name: str) -> Points:
    """Steps and values of a metric, for the lines that have it."""
    return [(line["step"], float(line[name])) for line in lines if is_finite(line.get(name))]
