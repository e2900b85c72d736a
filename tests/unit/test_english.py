"""Wording: a docstring begins with a noun phrase or a verb, and prose uses the words of the field."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import xp

ROOT = Path(xp.__file__).parents[1]
CLAUSE = re.compile(r"(Of|What|Whatever|Where|Who|Whose|Whoever|Whether|Why|Which|By|From|When|How|That|Those)\b")
"""First words of a clause without a subject: the reader has to find the noun elsewhere."""
HOUSE_WORDS = {
    r"\blaws?\b": "constraint",
    r"\bsettings? that\b": "batch shape",
    r"\bfarewells?\b": "shutdown",
    r"\bover(hear|heard|hears)\b": "captures",
    r"\b(an|its|the|one) orders? (for a stage|of a stage|is written)\b": "job spec",
    r"(?<!Other )(?<!`)\bplaces of (a|the|one) (run|attempt)\b": "paths",
    r"\b(a|the|its) mix\b(?!`)": "mixture",
}
"""Words that only this code used for something -> the field's word."""
FROZEN = ("xp/builtin/model/", "xp/builtin/mystery.py")
"""The digest of the shipped model is made of these files: a changed word would make the model stale."""


def code() -> Iterator[tuple[str, str]]:
    """Path and text of each module that may be reworded."""
    for path in sorted(ROOT.glob("xp/**/*.py")):
        name = str(path.relative_to(ROOT))
        if not name.startswith(FROZEN):
            yield name, path.read_text()


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip()


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    found = [(name, *doc) for name, text in code() for doc in docstrings(text)]
    assert len(found) > 3000
    assert [one for one in found if CLAUSE.match(one[2])] == []


def test_docstrings_and_comments_use_the_words_of_the_field() -> None:
    found = [
        (name, line, pattern, term)
        for name, text in code()
        for line, prose in (*docstrings(text), *comments(text))
        for pattern, term in HOUSE_WORDS.items()
        if re.search(pattern, prose)
    ]
    assert found == []


def test_a_comment_in_yaml_says_what_it_is_of() -> None:
    found = [
        (path.name, line.strip())
        for folder in ("conf", "recipes")
        for path in ROOT.glob(f"{folder}/**/*.yaml")
        for line in path.read_text().splitlines()
        if line.strip().startswith("# ")
    ]
    assert len(found) > 500
    assert [one for one in found if CLAUSE.match(one[1][2:])] == []
