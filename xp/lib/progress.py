"""Progress of a stage on standard error: a bar on a terminal, periodic lines in a log."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final, Self, TextIO, cast

from xp.lib.terminal import Redrawn

LINE_EVERY_S: Final = 10.0


def evaluation_bar(name: str, total: int, episodes: Any = None, *, is_shown: bool = True) -> Any:
    """tqdm's bar of an evaluation, which is for a moment where that of the training is.

    On a terminal, where the next bar takes its line, its last state, 100 %, is not kept.
    """
    from tqdm import tqdm

    stays = not (sys.stderr.isatty() or os.environ.get("TTY_COMPATIBLE"))
    return tqdm(
        episodes,
        desc=name,
        total=total,
        unit="episode",
        position=0,
        leave=stays,
        disable=not is_shown,
    )


def step_bar(title: str, total: int, unit: str, *, is_shown: bool) -> Any:
    """tqdm's bar of a training or a fine-tuning.

    Args:
        title: first word of the bar.
        total: number of all steps.
        unit: what a step is called.
        is_shown: False in a process that prints nothing.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=title,
        unit=unit,
        mininterval=1.0,
        dynamic_ncols=True,
        disable=not is_shown,
    )


class ProgressBar:
    """A context manager; a subclass may remove its bar at the end.

    Args:
        title: first words of the bar and of each line.
        total: number of all parts.
        noun: their name, in the plural.
    """

    removes_bar = False

    def __init__(self, title: str, total: int, noun: str) -> None:
        self.title = title
        self.total = total
        self._noun = noun
        self._last_line = time.monotonic()
        self._in_log: int | None = None
        """Completed parts in the last line of a log."""
        self._bar: Any = None

    def __enter__(self) -> Self:
        from rich import progress
        from rich.console import Console

        # A launcher sets environment variables if its own output is a terminal.
        console = Console(file=cast(TextIO, Redrawn(sys.stderr)))
        if console.is_terminal:
            columns = (
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeRemainingColumn(),
            )
            self._bar = progress.Progress(*columns, console=console, transient=self.removes_bar)
            self._bar.add_task(self.title, total=self.total, note="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: int, note: str, only_in_log: str = "") -> None:
        """Shows the number of completed parts.

        Args:
            done: completed parts.
            note: text after the number.
            only_in_log: what a bar shows by itself.
        """
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        elif now - self._last_line >= LINE_EVERY_S or (
            done == self.total and self._in_log not in (None, done)
        ):
            self._last_line = now
            self._in_log = done
            print(
                f"{self.title}: {done}/{self.total} {self._noun}, {note}{only_in_log}",
                file=sys.stderr,
                flush=True,
            )
