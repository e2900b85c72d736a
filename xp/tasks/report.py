"""Output of the prepare stage: a bar on a terminal, periodic lines in a log, a table at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from xp.tasks.config import Purpose
from xp.tasks.manifest import Count, Manifest
from xp.tasks.prompt_lengths import Counted

LINE_EVERY_S = 10.0
UNLIMITED = 100_000
"""Width that the table may have, in characters, so that no cell is cut; rich does not pad it to this width."""


class Progress:
    """Shows the number of fetched tasks, their rate, and the time left."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._known, self._failed = total, 0, 0, 0
        self._start = self._last_line = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        from rich.console import Console

        # A launcher sets environment variables if its own output is a terminal.
        console = Console(stderr=True)
        if console.is_terminal:
            from rich import progress

            columns = (
                progress.TextColumn("prepare"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[note]}"),
                progress.TimeRemainingColumn(),
            )
            self._bar = progress.Progress(*columns, console=console)
            self._task = self._bar.add_task("prepare", total=self._total, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def known(self, num_tasks: int) -> None:
        """Adds tasks that a finished shard of an earlier run has."""
        self._known += num_tasks
        self._show()

    def fetched(self, num_tasks: int) -> None:
        self._done += num_tasks
        self._show()

    def failed(self, num_tasks: int) -> None:
        self._failed += num_tasks
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        rate = self._done / max(now - self._start, 1e-3)
        note = f"{rate:.0f}/s" + (f", {self._failed} failed" if self._failed else "")
        completed = self._known + self._done + self._failed
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, note=note)
        elif now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            left = f", {(self._total - completed) / rate:.0f} s left" if self._done else ""
            print(f"prepare: {completed}/{self._total} tasks, {note}{left}", file=sys.stderr, flush=True)


def print_summary(title: str, counts: Mapping[str, Mapping[str, Count]], lengths: Counted | None = None) -> None:
    """Prints the set as a table; prompt lengths are in tokens if they were counted, else in characters."""
    from rich.console import Console
    from rich.table import Table

    print(title)
    is_counted = lengths is not None and bool(lengths.groups)
    columns = ("mean prompt\ntokens", "longest", "too long") if is_counted else ("mean prompt\ncharacters",)
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(("environment", "purpose", "tasks", "failed", "overlap", *columns)):
        table.add_column(column, no_wrap=True, justify="left" if number < 2 else "right")
    for env, purposes in sorted(counts.items()):
        for purpose, count in sorted(purposes.items(), reverse=True):
            shown = _tokens(lengths, env, purpose) if is_counted and lengths is not None else [_characters(count)]
            table.add_row(env, purpose, str(count.tasks), str(count.failed), str(count.overlapping), *shown)
    Console(file=sys.stdout, markup=False, highlight=False, width=UNLIMITED).print(table)
    if lengths is not None:
        print(lengths.note)


def _characters(count: Count) -> str:
    return f"{count.prompt_characters / count.tasks:.0f}" if count.tasks else "-"


def _tokens(lengths: Counted, env: str, purpose: str) -> list[str]:
    group = lengths.groups.get((env, Purpose(purpose)))
    return ["-"] * 3 if group is None else [f"{group.mean:.0f}", group.longest, f"{group.too_long:.1%}"]


def print_held_out(manifest: Manifest) -> None:
    """Prints one line for each environment: the rule of its held-out tasks, with numbers."""
    for name, record in sorted(manifest.held_out.items()):
        print(f"held out of {name}: {record.line()}", flush=True)
