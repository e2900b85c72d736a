"""What a stage's program imports, read from the sources: xp's modules that it reaches, and what those take from others.

Imports inside functions count: they are what fails an hour later.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def reached(programs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Modules of xp, and modules of other packages, that these programs import directly or through each other."""
    own: set[str] = set()
    others: set[str] = set()
    waiting = [*programs]
    while waiting:
        module = waiting.pop()
        if module in own:
            continue
        own.add(module)
        for name in _imports(_file(module)):
            top = name.partition(".")[0]
            if top == "xp":
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                others.add(name)
    return sorted(own), sorted(others)


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imports(file: Path) -> Iterator[str]:
    for node in _running(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from filter(_is_module, names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield child
        yield from _running(child)


def _is_module(name: str) -> bool:
    return name.startswith("xp.") and _file(name).is_file()
