"""One metric of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of metrics whose names differ in a part such as `<n>`."""

    name: str
    unit: str
    meaning: str
    reading: str
    """Interpretation of the metric."""

    @property
    def is_of_episodes(self) -> bool:
        """Returns whether xp computes it from the episodes' outcomes, in the same way on every backend."""
        return self.name.partition("/")[0] in OF_EPISODES and self.name != LEFT_OUT


OF_EPISODES: Final = ("reward", "reward_fn", "episodes", "environment", "tasks", "judges", "grader")
OF_TRAINERS: Final = ("training", "time")
"""First parts of the names of metrics that trainers measure."""
LEFT_OUT: Final = "episodes/groups_left_out"
