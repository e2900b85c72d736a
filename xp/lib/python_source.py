"""Parses an expression of Python in a program with several threads."""

from __future__ import annotations

import ast


def parse_expression(source: str) -> ast.expr:
    """Returns the tree of `source`.

    Until 3.11.8, CPython counts the depth of trees for all threads at once. Where the garbage collector lets another
    parser run in the middle, `ast.parse` raises SystemError for a correct text (gh-106905); it is then parsed again.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    while True:
        try:
            return ast.parse(source, mode="eval").body
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
