"""Tables of listings: on a terminal the columns that fit, in a pipe one plain line for each row."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from xp.lib.terminal import one_line, shown
from xp.lib.text import shortened

GAP: Final = "  "
MAX_CELL: Final = 60
"""Largest number of characters of a cell on a terminal, except in columns that are always shown."""


@dataclass(frozen=True)
class ListColumn:
    """One column of a listing."""

    name: str
    """Title of the column, and key of its values."""
    rank: int
    """0: always shown, never cut; on a narrow terminal the columns with the highest rank are left out first."""
    digits: int = 3
    """Digits after the decimal point."""


def show_table(
    columns: Sequence[ListColumn], rows: Sequence[Mapping[str, Any]], *, as_json: bool = False
) -> None:
    """Prints rows as text, or as JSON with every value.

    Args:
        columns: columns, in order.
        rows: column name -> text, number or None, for each row.
        as_json: whether a list of JSON objects is printed.
    """
    if as_json:
        print(
            json.dumps(
                [{column.name: row.get(column.name) for column in columns} for row in rows],
                indent=2,
            )
        )
    elif sys.stdout.isatty():
        print(fitted(columns, rows, shutil.get_terminal_size().columns), end="")
    else:
        print(plain(columns, rows), end="")


def wrapped(line: str) -> str:
    """The line, wrapped between words on a terminal, with continuation lines aligned to the text after the labels."""
    width = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or len(line) <= width:
        return line
    labels = re.match(r"\s*(?:\S+ {2,}){0,2}", line)
    if labels and labels[0].strip():
        indent = len(labels[0])
    else:
        indent = len(line) - len(line.lstrip()) + 4
    hanging = " " * min(indent, width // 2)
    return textwrap.fill(
        line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def labelled(label: str, lines: Sequence[str]) -> list[str]:
    """Lines of a summary with a label before the first one."""
    return [f"{label if number == 0 else '':<14}{line}" for number, line in enumerate(lines)]


def plain(columns: Sequence[ListColumn], rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and one line for each row, cells separated by tabs."""
    lines = [
        [column.name for column in columns],
        *([_cell(column, row) for column in columns] for row in rows),
    ]
    return "".join("\t".join(map(one_line, line)) + "\n" for line in lines)


def fitted(columns: Sequence[ListColumn], rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Aligned columns, as many as fit into `width` characters by rank, and a line that names the others."""
    if not rows:
        return ""
    cells = {
        column: [one_line(column.name), *(_cell(column, row) for row in rows)] for column in columns
    }
    cells |= {
        column: [shortened(text, MAX_CELL) for text in cells[column]]
        for column in columns
        if column.rank
    }
    widths = {column: max(map(len, texts)) for column, texts in cells.items()}
    chosen = sorted(columns, key=lambda column: column.rank)
    while (
        len(chosen) > 1
        and chosen[-1].rank
        and sum(widths[column] + len(GAP) for column in chosen) - len(GAP) > width
    ):
        chosen.pop()
    aligned = (
        [text.ljust(widths[column]) for text in cells[column]]
        for column in columns
        if column in chosen
    )
    text = "".join(f"{GAP.join(line).rstrip()}\n" for line in zip(*aligned, strict=True))
    left_out = [column.name for column in columns if column not in chosen]
    rest = f"not shown: {', '.join(left_out)} (--json has everything)"
    return text + (f"{wrapped(rest)}\n" if left_out else "")


def _cell(column: ListColumn, row: Mapping[str, Any]) -> str:
    value = row.get(column.name)
    if value is None:
        return "-"
    if isinstance(value, float):
        text = f"{value:.{column.digits}f}"
    else:
        text = str(value)
    return " ".join(shown(text).split()) or "-"
