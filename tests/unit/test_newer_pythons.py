"""Source code that newer versions of Python than the tests' own would refuse."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.launching import ROOT

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[tuple[str, str]]:
    """Place and text of each docstring of xp, its tests and its set-up."""
    for file in sorted(path for folder in ("xp", "tests", "tools") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node, clean=False)) is not None:
                yield f"{file.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def test_docstrings_can_be_encoded() -> None:
    # Python 3.13 takes their indentation away while it compiles, by way of UTF-8; a module with half a character fails.
    found = dict(docstrings())
    assert len(found) > 1000
    assert [place for place, text in found.items() if text != text.encode(errors="replace").decode()] == []
