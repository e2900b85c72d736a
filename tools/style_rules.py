"""Checks that a line says one thing: `python -m tools.style_rules` names each place that does not.

ruff has no rule for these three. Prime-rl's and tinker-cookbook's code, which is read fast, has next to none of them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("xp", "tools", "tests")


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and fault of each place."""
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.If | ast.While)]
    alone = {id(node) for test in tests if not _is_compound(test) for node in ast.walk(test)}
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and id(node) not in alone:
            yield node.lineno, "an assignment within an expression: write it on a line above"
        if isinstance(node, ast.Assign) and _is_pair(node):
            yield node.lineno, "two values on one line: write two assignments"
        if isinstance(node, ast.IfExp) and _holds(node, ast.IfExp):
            yield (
                node.lineno,
                "a conditional expression within another one: write if, elif and else",
            )


def _is_compound(test: ast.AST) -> bool:
    """Returns whether a condition has several parts."""
    several = (ast.BoolOp, ast.IfExp, ast.comprehension)
    return any(isinstance(node, several) for node in ast.walk(test))


def _is_pair(node: ast.Assign) -> bool:
    """Returns whether unrelated values are assigned; an exchange needs both at once."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    assigned = {ast.unparse(part) for part in target.elts}
    read = {ast.unparse(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)}
    return assigned.isdisjoint(read)


def _holds(node: ast.AST, kind: type[ast.AST]) -> bool:
    return any(isinstance(below, kind) for below in ast.walk(node) if below is not node)


def main() -> int:
    """Prints the places; returns 1 if there are any."""
    lines = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for line, fault in sorted(faults(tree)):
                lines.append(f"{path.relative_to(ROOT)}:{line}: {fault}")
    print("\n".join(lines) or "each line says one thing")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
