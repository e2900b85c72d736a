"""The code of xp/ is read at one sitting: short files and functions, in tokens; a class name once; one loop of turns."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.python_files import XP, trees

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


def upper_bound(text: str) -> int:
    """At least the tokens of a text, in a hundredth of the time."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def test_files_are_short() -> None:
    long = [file for file in trees() if upper_bound(file.read_text()) > MOST_IN_A_FILE]
    numbers = {str(file.relative_to(XP)): len(token_lines(file)) for file in long}
    assert {name: number for name, number in numbers.items() if number > MOST_IN_A_FILE} == {}


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions and methods of a module, with those inside of them."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            yield node
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield from functions(node.body)


def test_functions_are_short() -> None:
    long = {}
    for file, tree in trees().items():
        text = file.read_text().splitlines()
        for node in functions(tree.body):
            last = node.end_lineno or node.lineno
            if last - node.lineno < FEWEST_LINES:
                continue
            if upper_bound("\n".join(text[node.lineno - 1 : last])) > MOST_IN_A_FUNCTION:
                lines = token_lines(file)
                number = bisect_right(lines, last) - bisect_left(lines, node.lineno)
                if number > MOST_IN_A_FUNCTION:
                    long[f"{file.relative_to(XP)}:{node.name}"] = number
    assert long == {}


def test_no_class_name_is_defined_twice() -> None:
    homes = defaultdict(list)
    for file in trees():
        for name in re.findall(r"^ *class (\w+)", file.read_text(), re.MULTILINE):
            homes[name].append(file.relative_to(XP).as_posix())
    assert len(homes) > 200
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_no_other_module_steps_an_episode() -> None:
    places = [
        file.relative_to(XP).as_posix()
        for file in trees()
        if re.search(r"episode\.step\b", file.read_text())
    ]
    assert places == ["episode/play.py"]
