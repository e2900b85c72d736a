"""`tracking=sample`: one line for each step, in a file of the run."""

from __future__ import annotations

from collections.abc import Mapping

from xp.execution.tracking.base import TrackedRun, Tracker


class LinesTracker(Tracker):
    def __init__(self, run: TrackedRun) -> None:
        self._file = run.directory / "steps.txt"

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        with self._file.open("a") as file:
            file.write(f"{step} {len(metrics)}\n")

    def close(self, *, is_success: bool) -> None:
        with self._file.open("a") as file:
            file.write(f"{is_success}\n")
