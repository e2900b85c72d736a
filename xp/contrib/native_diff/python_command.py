"""The command line that a Python script makes of texts and gives to Slime's `execute_train`. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Final

LAUNCHER: Final = "execute_train"
"""Function of slime/utils/external_utils/command_utils.py."""
UNKNOWN: Final = "$computed"
"""Stands for a value that only the script's run has."""


def command_of(tree: ast.Module) -> str:
    """A shell script with the command line; empty if the file calls no such function.

    Args:
        tree: the file's syntax tree.
    """
    values: dict[str, ast.expr] = {}
    call: ast.Call | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id] = node.value
        elif isinstance(node, ast.Call) and _name(node.func) == LAUNCHER:
            call = node
    if call is None:
        return ""
    arguments = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    model = _text(arguments.get("megatron_model_type"), values)
    flags = _text(arguments.get("train_args"), values)
    if model == UNKNOWN:
        return f"python3 train.py {flags}\n"
    return f"source scripts/models/{model}.sh\npython3 train.py ${{MODEL_ARGS[@]}} {flags}\n"


def _name(function: ast.expr) -> str:
    """The last part of a function's name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr | None, values: Mapping[str, ast.expr]) -> str:
    """The text of an expression, with `UNKNOWN` in place of what is not written in the file."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, values) for part in parts)
        case ast.FormattedValue(value=value):
            return _text(value, values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, values) + _text(right, values)
        case ast.Name(id=name) if name in values:
            others = {key: value for key, value in values.items() if key != name}
            return _text(values[name], others)
        case ast.IfExp(orelse=orelse):  # as without a variable of the environment
            return _text(orelse, values)
        case ast.Call(func=function, args=[argument]) if _name(function) in ("int", "str"):
            return _text(argument, values)
        case ast.Call(func=function, args=[_, default]) if _name(function) in ("get", "getenv"):
            return _text(default, values)
        case ast.Call(func=function, args=parts) if _name(function) == "join" and len(parts) > 1:
            return "/".join(_text(part, values) for part in parts)
    return UNKNOWN
