"""Progress of an evaluation with mean reward and cost: a bar on a terminal, periodic lines in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xp.episode.outcome import EpisodeResult
from xp.lib.progress import ProgressBar


class EvaluationProgress(ProgressBar):
    """Counts episodes and shows progress on standard error; a context manager.

    Args:
        title: name of the evaluation.
        total: number of all episodes, including recorded ones.
        records: records of earlier episodes.
        cost: function that returns the cost so far, as text.
    """

    removes_bar = True

    def __init__(
        self,
        title: str,
        total: int,
        records: Iterable[Mapping[str, Any]],
        cost: Callable[[], str],
    ) -> None:
        super().__init__(title, total, "episodes")
        self._cost = cost
        rewards = [record["outcome"]["reward"] for record in records]
        scored = [reward for reward in rewards if reward is not None]
        self._sum = float(sum(scored))
        self._scored = len(scored)
        self._void = len(rewards) - len(scored)

    def ended(self, outcome: EpisodeResult) -> None:
        """Counts an episode that was recorded."""
        if outcome.reward is None:
            self._void += 1
        else:
            self._sum += outcome.reward
            self._scored += 1
        if self._scored:
            mean = f"reward {self._sum / self._scored:.3f}"
        else:
            mean = ""
        void = f"{self._void} void" if self._void else ""
        self.show(
            self._scored + self._void,
            ", ".join(part for part in (mean, void, self._cost()) if part),
        )
