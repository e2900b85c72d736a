"""No file of xp/ is long, and no function: whoever opens one sees all of it."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "xp"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_files_are_short() -> None:
    lines = {str(file.relative_to(PACKAGE)): len(file.read_text().splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_functions_are_short() -> None:
    long = {
        f"{file.relative_to(PACKAGE)}:{node.name}": node.end_lineno - node.lineno + 1
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, FUNCTIONS)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= 60
    }
    assert long == {}
