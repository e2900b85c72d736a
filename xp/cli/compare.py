"""`python -m xp runs compare`: a table for each environment, best run first, and a sentence about the best run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from xp.cli.table import print_json, show_table, wrapped
from xp.errors import XpError
from xp.execution.leaderboard import (
    MAX_SHOWN,
    RunEntry,
    as_csv,
    as_markdown,
    leaderboard,
    text,
)
from xp.execution.lock import FILE as LOCK
from xp.execution.lock import differences, facts_and_inputs
from xp.lib.terminal import one_line
from xp.lib.text import counted, shortened
from xp.results.evaluation.ranking import sentence, settings_of

RANKS: Final = {
    "model": 8,
    "algorithm": 6,
    "backend": 11,
    "seed": 7,
    "steps": 9,
    "before": 5,
    "after": 2,
    "stderr": 4,
    "minutes": 12,
    "status": 10,
    "note": 14,
    "tags": 13,
    "passes": 3,
}
"""Columns after the run and the keys that differ, which are always shown."""

SETTINGS: Final = {"setting": 0, "mean": 1, "stderr": 2, "n": 3}
"""Columns of the settings of a sweep: mean over seeds of the adjusted held-out reward, and number of seeds."""


def compare(outputs: Path, names: Sequence[str], form: str | None) -> None:
    """Prints runs by their held-out reward, best first.

    Args:
        outputs: the outputs root.
        names: names of runs, beginnings of names, or patterns. Empty means all runs.
        form: csv, markdown or json. None means a table for each environment.
    """
    lines = leaderboard(outputs, names)
    if form == "json":
        print_json(lines)
    elif form is not None:
        print({"csv": as_csv, "markdown": as_markdown}[form](lines), end="")
    elif not lines:
        print(f"no runs below {outputs / 'runs'}")
    else:
        show(outputs, lines)
        if len(lines) == 2:
            _show_locks([outputs / "runs" / line.run for line in lines])


def _show_locks(runs: Sequence[Path]) -> None:
    """Prints what differs between the locks of two runs, if both have one."""
    if not all((run / LOCK).is_file() for run in runs):
        return
    first, second = (facts_and_inputs(run) for run in runs)
    lines = differences(first, second)
    print(f"\nlocks: {counted(len(lines), 'difference') if lines else 'the same'}")
    for line in lines:
        print(wrapped(one_line(f"  {line}")))


def compare_existing(outputs: Path, names: Sequence[str]) -> None:
    """Compares those of the runs that have a record, since a sweep may have been interrupted."""
    existing = [name for name in names if (outputs / "runs" / name / "run.json").is_file()]
    if len(existing) > 1:
        print()
        try:
            show(outputs, leaderboard(outputs, existing))
        except XpError as error:  # the sweep has its own end
            print(f"xp: {error}", file=sys.stderr)


def show(outputs: Path, lines: Sequence[RunEntry]) -> None:
    """Prints a table and a sentence for each environment."""
    envs = list(dict.fromkeys(line.env for line in lines))
    for env in envs:
        of_env = [line for line in lines if line.env == env]
        if len(envs) > 1:
            print(f"{one_line(env) or 'unreadable'}:")
        keys = list(dict.fromkeys(key for line in of_env for key in line.differs))
        first = "after"
        if of_env[0].ranked_by == "passes":
            first = "passes"
        titles = {key: key for key in keys}
        # On a terminal the end of `training.learning_rate`, so that all keys fit 80 columns.
        ends = [key.rpartition(".")[2] for key in keys]
        if sys.stdout.isatty() and len({*ends, *RANKS, "run"}) == len(ends) + len(RANKS) + 1:
            titles = dict(zip(keys, ends, strict=True))
        columns = dict.fromkeys(("run", first, *titles.values()), 0)
        columns |= {name: rank for name, rank in RANKS.items() if name != first}
        rows = []
        for line in of_env:
            values = {key: shortened(text(value), MAX_SHOWN) for key, value in line.differs.items()}
            rows.append(asdict(line) | {titles[key]: value for key, value in values.items()})
        show_table(columns, rows)
        settings = settings_of(of_env)
        if len(settings) > 1 and any(len(setting.seeds) > 1 for setting in settings):
            print()
            values_of = (
                (setting.label, setting.mean, setting.stderr, len(setting.seeds))
                for setting in settings
            )
            show_table(SETTINGS, [dict(zip(SETTINGS, values, strict=True)) for values in values_of])
        verdict = sentence(outputs, of_env)
        if verdict is not None:
            print(wrapped(one_line(verdict)))
        if env != envs[-1]:
            print()
