"""Names of the code's own: one class name, one meaning."""

import ast
from collections import defaultdict
from pathlib import Path

import xp

ROOT = Path(xp.__file__).parent


def test_no_class_name_is_defined_twice() -> None:
    homes = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert len(homes) > 200
    assert {name: lines for name, lines in homes.items() if len(lines) > 1} == {}
