"""Wording that `explain` and the docs show: a docstring of the schema begins with a noun phrase or a verb."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import xp

ROOT = Path(xp.__file__).parents[1]
CLAUSE = re.compile(r"(Of|What|Where|Who|Whoever|Why|Which|By|From|When|How)\b")
"""First words of a clause without a subject: the reader has to find the noun elsewhere."""


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip()


def test_the_schemas_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [(path.name, *doc) for path in ROOT.glob("xp/spec/**/*.py") for doc in docstrings(path)]
    assert len(found) > 200
    assert [one for one in found if CLAUSE.match(one[2])] == []


def test_a_comment_on_a_default_says_what_it_is_of() -> None:
    comments = [
        (path.name, line.strip())
        for path in ROOT.glob("conf/**/_base.yaml")
        for line in path.read_text().splitlines()
        if line.strip().startswith("# ")
    ]
    assert len(comments) > 100
    assert [one for one in comments if CLAUSE.match(one[1][2:])] == []
