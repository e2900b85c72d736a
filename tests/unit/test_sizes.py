"""No file of xp/ is long, and no function: whoever opens one can read all of it. Size is counted in tokens."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left, bisect_right
from functools import cache
from pathlib import Path

from tests.support.python_files import XP, nodes

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
MOST_IN_A_FILE = 4500
MOST_IN_A_FUNCTION = 600


@cache
def token_lines(file: Path) -> list[int]:
    """The line of each token."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return [token.start[0] for token in tokens if token.type in COUNTED]


def test_files_are_short() -> None:
    numbers = {str(file.relative_to(XP)): len(token_lines(file)) for file in nodes()}
    assert {name: number for name, number in numbers.items() if number > MOST_IN_A_FILE} == {}


def test_functions_are_short() -> None:
    long = {}
    for file, of_file in nodes().items():
        lines = token_lines(file)
        for node in of_file:
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                number = bisect_right(lines, node.end_lineno) - bisect_left(lines, node.lineno)
                if number > MOST_IN_A_FUNCTION:
                    long[f"{file.relative_to(XP)}:{node.name}"] = number
    assert long == {}
