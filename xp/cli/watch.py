"""`python -m xp runs watch`: a table of runs that is redrawn while they go on; in a pipe, a line for each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from xp.cli.display import live_console
from xp.cli.progress import RunProgress, clock, progress_of
from xp.cli.runs import status
from xp.cli.sparkline import bar, sparkline
from xp.errors import XpError
from xp.lib.terminal import is_read, shown
from xp.runs import detached
from xp.runs.named import named_runs
from xp.runs.record import RunStatus

LOOK_S: Final = 1.0
WIDTH: Final = 20
HEAD: Final = ("run", "status", "progress", "step", "reward", "", "left")
PLAIN: Final = ("run", "status", "progress", "step", "reward", "seconds left")
Row = tuple[str, ...]


def watch(outputs: Path, names: Sequence[str], look_s: float = LOOK_S) -> None:
    """Shows runs until none of them is running.

    Args:
        outputs: the outputs root.
        names: names of runs, beginnings of names, or patterns; none: all running ones.
        look_s: seconds between two reads.
    """
    chosen = named_runs(outputs, names, takes_several=True)
    if not names:
        chosen = [run for run in chosen if _row(run)[1] == RunStatus.RUNNING.value]
    if not chosen:
        print(f"no run is in progress below {outputs / 'runs'}")
        return
    out = live_console()
    if not out.is_terminal:
        _lines(chosen, look_s)
        return
    from rich.live import Live

    with Live(_table(chosen), console=out, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        while is_read() and any(_row(run)[1] == RunStatus.RUNNING.value for run in chosen):
            live.update(_table(chosen), refresh=True)
            time.sleep(look_s)
        live.update(_table(chosen), refresh=True)


def _lines(chosen: Sequence[Path], look_s: float) -> None:
    """Prints a header, and one line for each change of a run, cells separated by tabs."""
    before: dict[Path, Row] = {}
    print("\t".join(PLAIN), flush=True)
    while True:
        rows = {run: _row(run, _plain_cells) for run in chosen}
        for run, row in rows.items():
            told = row[:-1]  # without the time left, which always changes
            if before.get(run) != told:
                before[run] = told
                print("\t".join(row), flush=True)
        if not is_read() or all(row[1] != RunStatus.RUNNING.value for row in rows.values()):
            return
        time.sleep(look_s)


def _table(chosen: Sequence[Path]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in HEAD:
        table.add_column(name, no_wrap=True)
    for run in chosen:
        table.add_row(*(Text(cell) for cell in _row(run)))
    return table


def _plain_cells(found: RunProgress | None) -> Row:
    if found is None:
        return ("-", "-", "-", "-")
    rewards = [value for _, value in found.rewards]
    return (
        "-" if found.share is None else f"{found.share:.2f}",
        f"{found.step}/{found.num_steps}" if found.num_steps else str(found.step),
        f"{rewards[-1]:.3f}" if rewards else "-",
        "-" if found.seconds_left is None else f"{found.seconds_left:.0f}",
    )


def _cells(found: RunProgress | None) -> Row:
    if found is None:
        return ("", "", "", "", "")
    rewards = [value for _, value in found.rewards]
    return (
        "" if found.share is None else bar(found.share),
        f"{found.step}/{found.num_steps}" if found.num_steps else str(found.step),
        f"{rewards[-1]:.3f}" if rewards else "",
        sparkline(rewards, WIDTH),
        "" if found.seconds_left is None else clock(found.seconds_left),
    )


def _row(run: Path, cells: Callable[[RunProgress | None], Row] = _cells) -> Row:
    try:
        record = detached.current(run)
        return (run.name, status(run, record), *cells(progress_of(run, record)))
    except XpError as error:
        return (run.name, " ".join(shown(f"unreadable: {error}").split()), *["-"] * len(cells(None)))
