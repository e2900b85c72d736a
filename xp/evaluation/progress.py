"""Progress of an evaluation with mean reward and cost: a bar on a terminal, periodic lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final

from xp.episode.outcome import EpisodeResult
from xp.launchers.node.log import Redrawn

LINE_EVERY_S: Final = 10.0


class Board:
    """Counts episodes and shows progress on standard error; a context manager.

    Args:
        title: name of the evaluation.
        total: number of all episodes, including recorded ones.
        records: records of earlier episodes.
        cost: function that returns the cost so far, as text.
    """

    def __init__(
        self, title: str, total: int, records: Iterable[Mapping[str, Any]], cost: Callable[[], str] = lambda: ""
    ) -> None:
        self._title, self._total, self._cost = title, total, cost
        rewards = [record["outcome"]["reward"] for record in records]
        scored = [reward for reward in rewards if reward is not None]
        self._sum, self._scored, self._void = float(sum(scored)), len(scored), len(rewards) - len(scored)
        self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def ended(self, outcome: EpisodeResult) -> None:
        """Counts an episode that was recorded."""
        if outcome.reward is None:
            self._void += 1
        else:
            self._sum += outcome.reward
            self._scored += 1
        self._show()

    def __enter__(self) -> Board:
        from rich import progress
        from rich.console import Console

        console = Console(file=Redrawn(sys.stderr))  # type: ignore[arg-type]
        if console.is_terminal:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=None),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeRemainingColumn(),
            )
            self._bar = progress.Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task(self._title, total=self._total, note="")
            self._bar.start()
            self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        done, now = self._scored + self._void, time.monotonic()
        mean = f"reward {self._sum / self._scored:.3f}" if self._scored else ""
        void = f"{self._void} void" if self._void else ""
        note = ", ".join(part for part in (mean, void, self._cost()) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
        elif now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            print(f"{self._title}: {done}/{self._total} episodes, {note}", file=sys.stderr, flush=True)
