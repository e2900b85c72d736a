"""Finds in the code, by its syntax tree, the messages that say what a trainer, an engine or a launcher cannot do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.python_files import trees

ROOT = Path(__file__).parents[2]
ROOMS = (
    "xp/planning",
    "xp/backends",
    "xp/execution/launchers",
    "xp/worker/engines",
    "xp/worker",
    "xp/lib/models",
    "xp/envs/docker.py",
    "xp/contrib/kubernetes",
    "xp/contrib/skypilot",
)
TABLES = re.compile(r"xp/fields/")
"""The table of fields, whose messages test_rows.py meets by specs."""
NAMES = re.compile(
    r"\b(TRL|SkyRL|Slime|Megatron|v?LLM|vllm|SGLang|sglang|transformers|peft|FSDP2?|Ray|Slurm|sbatch|Modal|SkyPilot"
    r"|Docker|Apptainer|pyxis|engines?|launcher|trainers?|rehearsal|quantized)\b"
)
LIMIT = re.compile(
    r"launcher=\w+ has|trained weights are|"
    r"\b(cannot|only|alone|no|not|must|needs?|never|always|without|lacks?|supports?|expects|at most|one (node|container))\b"
)
EVENT = re.compile(
    r"did not|does not answer|was not|is not on this machine|not installed|answered|answers at|ended without|has no key"
    r"|client: |no such (key|flag)|had no|failed"
)
"""Words about one run or one machine, which claim nothing of a program."""
CALLS = ("Refusal", "Constraint", "_on_placement")


def messages() -> Iterator[tuple[str, str]]:
    """File and text of each message; what is written into an f-string is `{}`."""
    for room in ROOMS:
        place = ROOT / room
        for file, tree in trees().items():
            name = file.relative_to(ROOT).as_posix()
            if file.is_relative_to(place) and not TABLES.search(name):
                for text in dict.fromkeys(_texts(tree)):
                    yield name, text


def _texts(tree: ast.AST) -> Iterator[str]:
    left_out = {id(node) for node in _documentation(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _arguments(node)
        if not isinstance(node, ast.expr) or id(node) in left_out:
            continue
        text = _text(node)
        left_out |= {id(part) for part in ast.walk(node)} if text else set()
        if NAMES.search(text) and LIMIT.search(text) and _is_message(text):
            yield text


def _is_message(text: str) -> bool:
    return len(text.split()) > 3 and not EVENT.search(text) and "\n" not in text


def _arguments(call: ast.Call) -> Iterator[str]:
    """The texts that a refusal or a constraint is made with, whatever they name."""
    if isinstance(call.func, ast.Name) and call.func.id in CALLS:
        for argument in call.args:
            text = _text(argument)
            if _is_message(text):
                yield text
                return


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return ""


def _documentation(tree: ast.AST) -> Iterator[ast.AST]:
    """Docstrings, and the words that are printed but refuse nothing: notes of a plan are no messages."""
    for node in ast.walk(tree):
        for statement in _statements(node):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield statement.value


def _statements(node: ast.AST) -> list[ast.AST]:
    body = getattr(node, "body", [])
    return body if isinstance(body, list) else []
