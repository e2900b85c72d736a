"""No file of xp/ is long, and no function: whoever opens one can read all of it. Size is counted in tokens."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "xp"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
MOST_IN_A_FILE = 4500
MOST_IN_A_FUNCTION = 600


def token_lines(file: Path) -> list[int]:
    """The line of each token."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return [token.start[0] for token in tokens if token.type in COUNTED]


def test_files_are_short() -> None:
    numbers = {str(file.relative_to(PACKAGE)): len(token_lines(file)) for file in FILES}
    assert {name: number for name, number in numbers.items() if number > MOST_IN_A_FILE} == {}


def test_functions_are_short() -> None:
    long = {}
    for file in FILES:
        lines = token_lines(file)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                number = sum(node.lineno <= line <= node.end_lineno for line in lines)
                if number > MOST_IN_A_FUNCTION:
                    long[f"{file.relative_to(PACKAGE)}:{node.name}"] = number
    assert long == {}
