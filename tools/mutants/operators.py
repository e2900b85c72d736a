"""Mutants of a module: small plausible faults, each one a replacement of a piece of the source."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

SWAPPED: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Continue: ast.Break,
    ast.Break: ast.Continue,
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sum": "max",
    "fmean": "sum",
    "mean": "sum",
    "sorted": "list",
}
# Calls whose arguments are text for a person.
MESSAGES = {"print", "warn", "XpError", "EnvFault", "TypeError", "ValueError"}
# Larger integers are limits and sizes that were chosen by hand: one more or less is no fault.
LARGEST = 16
# Arguments that no result depends on.
CHECKS = {"strict", "flush"}


@dataclass(frozen=True)
class Mutant:
    """A replacement of `source[start:end]` (bytes) in a module."""

    path: str
    scope: str
    line: int
    """First line of the statement."""
    own_line: int
    """First line of the replaced part."""
    start: int
    end: int
    old: str
    new: str

    @property
    def key(self) -> str:
        """A name that stays the same when other parts of the module change."""
        return f"{self.path}::{self.scope}: {' '.join(self.old.split())} -> {' '.join(self.new.split())}"

    def apply(self, source: str) -> str:
        """The module's source with the fault."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of their places."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found = []
    for scope, statement, node, replacement in _walk(ast.parse(source), "", None):
        assert isinstance(node, ast.expr | ast.stmt)
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old = source.encode()[start:end].decode()
        if " ".join(old.split()) != replacement:
            found.append(
                Mutant(path, scope, statement.lineno, node.lineno, start, end, old, replacement)
            )
    return sorted(
        {(m.start, m.end, m.new): m for m in found}.values(), key=lambda m: (m.start, m.end, m.new)
    )


def digest(text: str) -> str:
    """A short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _walk(
    node: ast.AST, scope: str, statement: ast.stmt | None
) -> Iterator[tuple[str, ast.stmt, ast.AST, str]]:
    """(scope, statement, node, replacement) for each fault below a node."""
    if isinstance(
        node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Raise | ast.Assert
    ) or _is_message(node):
        return
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    if isinstance(node, ast.keyword) and node.arg in CHECKS:
        return
    if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(node).partition("=")[
        0
    ].partition(":")[0].strip().endswith("_S"):
        return  # likewise of seconds
    if isinstance(node, ast.stmt):
        statement = node
    if statement is not None:
        for replacement in _replacements(node):
            yield scope, statement, node, replacement
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
            node.test, ast.Constant
        ):
            for replacement in ("False",) if isinstance(node, ast.While) else ("True", "False"):
                yield scope, statement, node.test, replacement
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inner = f"{scope}.{node.name}".strip(".")
    else:
        inner = scope
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list"} or (
            name in {"slice", "lower", "upper"} and _is_number(value)
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, inner, statement)


def _is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    else:
        name = ""
    return name in MESSAGES


def _replacements(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[op]):
            yield _with(node, ops=[SWAPPED[type(op)]()])
        case ast.BinOp(op=op, left=left, right=right) if type(op) in SWAPPED and not any(
            map(_is_text, (left, right))
        ):
            yield _with(node, op=SWAPPED[type(op)]())
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=SWAPPED[type(op)]())
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield f"({ast.unparse(rest[0])})" if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value) if abs(value) <= LARGEST:
            yield from (str(value + 1), str(value - 1)) if value else ("1",)
        case ast.Constant(value=float() as value):
            yield repr(value * 2 if value else 1.0)
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield _with(
                node, func=ast.Name(NAMES[name]), keywords=[] if name == "sorted" else node.keywords
            )
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            yield _with(node, func=_changed(node.func, attr=NAMES[name]))
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield _with(node, slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield _with(node, slice=ast.Constant(0))
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)) if lower or upper:
            for bound in ("lower", "upper"):
                number = getattr(node.slice, bound)
                if isinstance(number, ast.Constant) and isinstance(number.value, int):
                    yield _with(
                        node, slice=_changed(node.slice, **{bound: ast.Constant(number.value + 1)})
                    )
        case ast.GeneratorExp() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            for i, generator in enumerate(node.generators):
                if generator.ifs:
                    generators: list[ast.AST] = [*node.generators]
                    generators[i] = _changed(generator, ifs=[])
                    yield _with(node, generators=generators)
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "return None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Continue() | ast.Break():
            yield "pass"
        case ast.AugAssign(op=op) if type(op) in SWAPPED:
            yield _with(node, op=SWAPPED[type(op)]())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def _is_number(node: object) -> bool:
    """An index or a bound that `_replacements` of its subscript replaces."""
    return isinstance(node, ast.Constant) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant)
    )


def _is_text(node: ast.AST) -> bool:
    """Text, a list or, by its usual names, a path: the fault would be a TypeError on every call."""
    if any(
        word in ast.unparse(node).lower()
        for word in ("path", "director", "folder", "root", "place", ".parent")
    ):
        return True
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _with(node: ast.AST, **fields: object) -> str:
    text = ast.unparse(ast.fix_missing_locations(_changed(node, **fields)))
    if isinstance(node, ast.stmt):
        return text
    return f"({text})"
