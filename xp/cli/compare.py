"""`python -m xp runs compare`: a table for each environment, best run first, and a sentence about the best run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from xp.cli.table import ListColumn, show_table, wrapped
from xp.execution.leaderboard import (
    MAX_SHOWN,
    PLAIN,
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

RANKS: Final = (
    *(
        "run",
        "after",
        "passes",
        "stderr",
        "before",
        "algorithm",
        "seed",
        "model",
        "steps",
        "status",
        "backend",
    ),
    *("minutes", "tags", "note"),
)
"""Columns in the order of their ranks (`xp.cli.table.ListColumn`); keys that differ are always shown."""

SETTINGS: Final = (
    ListColumn("setting", 0),
    ListColumn("mean", 1),
    ListColumn("stderr", 2),
    ListColumn("n", 3),
)
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
        print(json.dumps([asdict(line) for line in lines], indent=2))
    elif form is not None:
        print(as_csv(lines) if form == "csv" else as_markdown(lines), end="")
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
    print("\nlocks: " + ("the same" if not lines else f"{counted(len(lines), 'difference')}"))
    for line in lines:
        print(wrapped(one_line(f"  {line}")))


def compare_existing(outputs: Path, names: Sequence[str]) -> None:
    """Compares those of the runs that have a record, since a sweep may have been interrupted."""
    existing = [name for name in names if (outputs / "runs" / name / "run.json").is_file()]
    if len(existing) > 1:
        print()
        show(outputs, leaderboard(outputs, existing))


def show(outputs: Path, lines: Sequence[RunEntry]) -> None:
    """Prints a table and a sentence for each environment."""
    envs = list(dict.fromkeys(line.env for line in lines))
    for env in envs:
        of_env = [line for line in lines if line.env == env]
        if len(envs) > 1:
            print(f"{one_line(env) or 'unreadable'}:")
        keys = list(dict.fromkeys(key for line in of_env for key in line.differs))
        plain = [name for name in PLAIN if name not in ("run", "env", "ranked_by", "incomparable")]
        if of_env[0].ranked_by == "passes":
            first = "passes"
        else:
            first = "after"
        ends = [key.rpartition(".")[2] for key in keys]
        # On a terminal the end of `training.learning_rate`, so that all keys fit 80 columns.
        is_short = sys.stdout.isatty() and len({*ends, *RANKS}) == len(ends) + len(RANKS)
        titles = dict(zip(keys, ends if is_short else keys, strict=True))
        columns = [
            *(ListColumn(name, 0) for name in ("run", first, *titles.values())),
            *(ListColumn(name, 1 + RANKS.index(name)) for name in plain if name != first),
        ]
        rows = [
            {**asdict(line), **{titles[key]: text(value) for key, value in line.differs.items()}}
            for line in of_env
        ]
        rows = [
            {
                key: shortened(value, MAX_SHOWN) if isinstance(value, str) else value
                for key, value in row.items()
            }
            for row in rows
        ]
        show_table(columns, rows)
        settings = settings_of(of_env)
        if len(settings) > 1 and any(len(setting.seeds) > 1 for setting in settings):
            print()
            rows_of_settings = [
                {
                    "setting": setting.label,
                    "mean": setting.mean,
                    "stderr": setting.stderr,
                    "n": len(setting.seeds),
                }
                for setting in settings
            ]
            show_table(SETTINGS, rows_of_settings)
        verdict = sentence(outputs, of_env)
        if verdict is not None:
            print(wrapped(one_line(verdict)))
        if env != envs[-1]:
            print()
