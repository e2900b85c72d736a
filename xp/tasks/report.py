"""Output of the prepare stage: a bar on a terminal, periodic lines in a log, a table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from xp.tasks.config import Purpose
from xp.tasks.manifest import Manifest, TaskCount
from xp.tasks.prompt_lengths import PromptLengths

UNLIMITED = 100_000
"""Width that the table may have, in characters, so that no cell is cut; rich does not pad it to this width."""


def print_summary(
    title: str, counts: Mapping[str, Mapping[str, TaskCount]], lengths: PromptLengths | None
) -> None:
    """Prints the set as a table; prompt lengths are in tokens if they were counted, else in characters."""
    from rich.console import Console
    from rich.table import Table

    print(title)
    is_counted = lengths is not None and bool(lengths.groups)
    columns = (
        ("mean prompt\ntokens", "longest", "too long")
        if is_counted
        else ("mean prompt\ncharacters",)
    )
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(
        ("environment", "purpose", "tasks", "failed", "overlap", *columns)
    ):
        table.add_column(column, no_wrap=True, justify="left" if number < 2 else "right")
    for env, purposes in sorted(counts.items()):
        for purpose, count in sorted(purposes.items(), reverse=True):
            shown = [f"{count.prompt_characters / count.tasks:.0f}" if count.tasks else "-"]
            if is_counted and lengths is not None:
                group = lengths.groups.get((env, Purpose(purpose)))
                if group:
                    shown = [f"{group.mean:.0f}", str(group.longest), f"{group.too_long:.1%}"]
                else:
                    shown = ["-"] * 3
            table.add_row(
                env, purpose, str(count.tasks), str(count.failed), str(count.overlapping), *shown
            )
    Console(file=sys.stdout, markup=False, highlight=False, width=UNLIMITED).print(table)
    if lengths is not None:
        print(lengths.note)


def print_held_out(manifest: Manifest) -> None:
    """Prints one line for each environment: the rule of its held-out tasks, with numbers."""
    for name, record in sorted(manifest.held_out.items()):
        print(f"held out of {name}: {record.line()}", flush=True)
