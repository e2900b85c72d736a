"""Names of the code's own: one class name, one meaning."""

import ast
from collections import defaultdict

from tests.support.python_files import XP, nodes


def test_no_class_name_is_defined_twice() -> None:
    homes = defaultdict(list)
    for path, of_file in nodes().items():
        for node in of_file:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(XP)}:{node.lineno}")
    assert len(homes) > 200
    assert {name: lines for name, lines in homes.items() if len(lines) > 1} == {}
