"""Makes texts of runs and servers harmless in the cells of Markdown, CSV and plain tables."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet computes."""


def one_line(text: str) -> str:
    """The text without line ends and tabs, which would begin a row or a cell."""
    return re.sub(r"\s+", " ", text) if re.search(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", text) else text


def markdown_cell(text: str) -> str:
    """The text as a cell of a Markdown table: without columns, rows, HTML, links and images of its own."""
    escaped = one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return escaped.replace("](", "]\\(")


def csv_cell(text: str) -> str:
    """The text as a cell of a CSV file, with `'` before what a spreadsheet would compute; numbers stay as they are."""
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
