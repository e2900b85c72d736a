"""Tables of listings: on a terminal the columns that fit, in a pipe one plain line for each row."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from xp.lib.terminal import one_line, shown
from xp.lib.text import shortened

GAP: Final = "  "
MAX_CELL: Final = 60
"""Largest number of characters of a cell on a terminal, except in columns that are always shown."""


Columns = Mapping[str, int]
"""Title of a column, which is the key of its values -> its rank. 0: always shown, never cut; on a narrow terminal the
columns with the highest rank are left out first."""
DIGITS: Final = {"progress": 2, "MB": 1}
"""Column -> digits after the decimal point; the others have 3."""


def print_json(value: Any) -> None:
    """Prints a value as JSON; a dataclass is an object, and what JSON has no form for is a text."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=_plain_value))


def _plain_value(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def show_table(
    columns: Columns, rows: Sequence[Mapping[str, Any]], *, as_json: bool = False
) -> None:
    """Prints rows as text, or as JSON with every value.

    Args:
        columns: columns, in order.
        rows: column -> text, number or None, for each row.
        as_json: whether a list of JSON objects is printed.
    """
    if as_json:
        print_json([{column: row.get(column) for column in columns} for row in rows])
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
    indent = len(line) - len(line.lstrip()) + 4
    if labels and labels[0].strip():
        indent = len(labels[0])
    hanging = " " * min(indent, width // 2)
    return textwrap.fill(
        line, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )


def labelled_environment(lines: Sequence[str]) -> list[str]:
    """Lines of a summary with the label `environment` before the first one."""
    return [
        f"{'environment' if number == 0 else '':<14}{line}" for number, line in enumerate(lines)
    ]


def plain(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and one line for each row, cells separated by tabs."""
    lines = [list(columns), *([_cell(column, row) for column in columns] for row in rows)]
    return "".join("\t".join(map(one_line, line)) + "\n" for line in lines)


def fitted(columns: Columns, rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """Aligned columns, as many as fit into `width` characters by rank, and a line that names the others."""
    if not rows:
        return ""
    aligned: dict[str, list[str]] = {}
    for column, rank in columns.items():
        cells = [one_line(column), *(_cell(column, row) for row in rows)]
        if rank:
            cells = [shortened(cell, MAX_CELL) for cell in cells]
        longest = max(map(len, cells))
        aligned[column] = [cell.ljust(longest) for cell in cells]
    by_rank = sorted(columns, key=lambda column: columns[column])
    left_out: list[str] = []
    while (
        len(aligned) > 1
        and columns[by_rank[-1]]
        and len(GAP.join(cells[0] for cells in aligned.values())) > width
    ):
        left_out.append(by_rank.pop())
        del aligned[left_out[-1]]
    lines = [GAP.join(line).rstrip() for line in zip(*aligned.values(), strict=True)]
    if left_out:
        names = ", ".join(column for column in columns if column in left_out)
        lines.append(wrapped(f"not shown: {names} (--json has everything)"))
    return "".join(f"{line}\n" for line in lines)


def _cell(column: str, row: Mapping[str, Any]) -> str:
    value = row.get(column)
    if value is None:
        return "-"
    if isinstance(value, float):
        value = f"{value:.{DIGITS.get(column, 3)}f}"
    return " ".join(shown(str(value)).split()) or "-"
