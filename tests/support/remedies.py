"""Texts of refusals and errors, as far as the code itself shows them, and whether a text says what to do."""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from tests.support import python_files

VERBS = (
    *("add", "ask", "begin", "build", "call", "change", "check", "choose", "continue", "convert"),
    *("correct", "declare", "describe", "download", "drop", "end", "evaluate", "export", "free"),
    *("give", "install", "keep", "leave", "look", "lower", "make", "mark", "move", "name", "play"),
    *("publish", "put", "raise", "read", "remove", "rename", "repair", "repeat", "resume", "round"),
    *(
        "run",
        "save",
        "say",
        "see",
        "send",
        "set",
        "shorten",
        "show",
        "start",
        "stop",
        "take",
        "try",
    ),
    *("update", "use", "wait", "widen", "write"),
)
"""Imperatives that a remedy begins with."""
IMPERATIVE = re.compile(rf"(?:^|[;:,(\n] ?|\b(?:or|and|then|to) )(?:{'|'.join(VERBS)})\b")
BARE = re.compile(r"(?:or |and )?`?(?:--[a-z]|python -m xp|xp |[a-z_]+(?:\.[a-z_{}]+)*=)")
"""Beginning of a clause that names a key with a value, a flag or a command without a verb before it."""
MAX_TEXTS = 16
"""Largest number of variants of one text."""
MAX_DEPTH = 3
"""Largest number of functions that a text is followed through."""

Names = Mapping[str, Sequence[ast.AST]]
"""Name -> what it is set to, or the functions of this name."""


class Message(NamedTuple):
    """A text of an error or a refusal."""

    place: str
    kind: str
    """Name of the class, or `refuse` for a column."""
    text: str


def has_imperative(text: str) -> bool:
    """Returns whether a text says what to do."""
    return IMPERATIVE.search(text) is not None


def bare_remedies(text: str) -> list[str]:
    """Clauses that name a remedy without a verb."""
    clauses = re.split(r"; |\n", text)
    return [clause for clause in clauses[1:] if BARE.match(clause)]


def messages() -> Iterator[Message]:
    """All texts of xp: refusals, refusals of columns, and errors of users."""
    trees = python_files.trees()
    everywhere: dict[str, list[ast.AST]] = {}
    for tree in trees.values():
        for name, values in _bound(tree.body).items():
            everywhere.setdefault(name, []).extend(values)
    for file, tree in trees.items():
        names = ChainMap(_bound(tree.body), everywhere)
        yield from _of(tree, names, str(file.relative_to(python_files.XP)))


def _of(node: ast.AST, names: Names, place: str) -> Iterator[Message]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        names = ChainMap(_bound(ast.walk(node)), names)
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", "")
        for kind, value in _arguments(called, node):
            for text in dict.fromkeys(_texts(value, names)):
                yield Message(f"{place}:{node.lineno}", kind, text)
    for child in ast.iter_child_nodes(node):
        yield from _of(child, names, place)


def _arguments(called: str, node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if called == "Refusal" and len(node.args) > 1:
        yield called, node.args[1]
    if called == "Column":
        for word in node.keywords:
            if word.arg == "refuse" and isinstance(word.value, ast.Name):
                yield word.arg, ast.Call(word.value, [], [])
            elif word.arg == "refuse":
                yield word.arg, word.value
    if called in ("XpError", "ValueError") and node.args:
        yield called, node.args[0]


def _bound(nodes: Iterator[ast.AST] | Sequence[ast.AST]) -> dict[str, list[ast.AST]]:
    """Names that these statements set, and their functions."""
    names: dict[str, list[ast.AST]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                if node.value is not None:
                    names.setdefault(name, []).append(node.value)
            case ast.FunctionDef():
                names.setdefault(node.name, []).append(node)
    return names


def _texts(node: ast.AST, names: Names, busy: frozenset[str] = frozenset()) -> list[str]:
    """Variants of a text; `{}` stands for what the code does not show.

    Args:
        node: the expression.
        names: known names.
        busy: names that are being followed.
    """
    match node:
        case ast.Constant():
            return [] if node.value is None else [str(node.value)]
        case ast.JoinedStr():
            return _joined([_texts(value, names, busy) for value in node.values])
        case ast.FormattedValue():
            return _texts(node.value, names, busy)
        case ast.BinOp(op=ast.Add()):
            return _joined([_texts(side, names, busy) for side in (node.left, node.right)])
        case ast.IfExp():
            return _texts(node.body, names, busy) + _texts(node.orelse, names, busy)
        case ast.BoolOp():
            return [text for value in node.values for text in _texts(value, names, busy)]
        case ast.Lambda():
            return _texts(node.body, names, busy)
        case ast.Call(func=ast.Name(name)) | ast.Name(name) if name not in busy and name in names:
            values = names.get(name, ())
            if isinstance(node, ast.Name):  # A variable may be called as a function elsewhere.
                values = [value for value in values if not isinstance(value, ast.FunctionDef)]
            if values and len(busy) < MAX_DEPTH:
                inside = busy | {name}
                return [text for value in values for text in _texts(value, names, inside)]
        case ast.FunctionDef():
            inner = ChainMap(_bound(ast.walk(node)), names)
            ends = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
            return [text for end in ends if end is not None for text in _texts(end, inner, busy)]
    return ["{}"]


def _joined(parts: Sequence[Sequence[str]]) -> list[str]:
    texts = [""]
    for part in parts:
        texts = ["".join(pair) for pair in product(texts, part or ["{}"])][:MAX_TEXTS]
    return texts
