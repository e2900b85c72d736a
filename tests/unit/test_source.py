"""The code of xp/ is read at one sitting: short files and functions, in tokens; a class name once; one loop of turns."""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.support.python_files import XP, nodes

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
MOST_IN_A_FILE = 4500
MOST_IN_A_FUNCTION = 600
FEWEST_LINES = 20
"""Lines of a function that may have so many tokens."""


@cache
def token_lines(file: Path) -> list[int]:
    """The line of each token."""
    tokens = tokenize.generate_tokens(io.StringIO(file.read_text()).readline)
    return [token.start[0] for token in tokens if token.type in COUNTED]


def test_files_are_short() -> None:
    long = [file for file in nodes() if len(file.read_text().splitlines()) > 200]
    numbers = {str(file.relative_to(XP)): len(token_lines(file)) for file in long}
    assert {name: number for name, number in numbers.items() if number > MOST_IN_A_FILE} == {}


def test_functions_are_short() -> None:
    long = {}
    for file, of_file in nodes().items():
        for node in of_file:
            if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= FEWEST_LINES:
                lines = token_lines(file)
                number = bisect_right(lines, node.end_lineno) - bisect_left(lines, node.lineno)
                if number > MOST_IN_A_FUNCTION:
                    long[f"{file.relative_to(XP)}:{node.name}"] = number
    assert long == {}


def test_no_class_name_is_defined_twice() -> None:
    homes = defaultdict(list)
    for path, of_file in nodes().items():
        for node in of_file:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(XP)}:{node.lineno}")
    assert len(homes) > 200
    assert {name: lines for name, lines in homes.items() if len(lines) > 1} == {}


def test_no_other_module_steps_an_episode() -> None:
    places = [
        file.relative_to(XP).as_posix()
        for file, of_file in nodes().items()
        for node in of_file
        if isinstance(node, ast.Attribute)
        and node.attr == "step"
        and ast.unparse(node.value).rpartition(".")[2].lstrip("_") == "episode"
    ]
    assert places == ["episode/play.py"]
