"""Looks for the user's functions and classes of a spec in their files, so that a plan finds a wrong name without an
import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from xp.errors import nearest
from xp.lib.code_files import find_module
from xp.lib.data_files import is_data, names_of
from xp.lib.facts import fact
from xp.planning.run_size import member_key
from xp.spec import EnvMember, RunSpec
from xp.spec.env import READY, GraderForm
from xp.spec.sft import SOLVE
from xp.spec.tasks import BY_PASS_RATE

GROUP_ARGUMENTS = 1
"""Arguments by position of a group's reward function, and of an advantage function: the list of episodes."""
CURRICULUM_ARGUMENTS = 1
"""Arguments by position of a curriculum: the list of tasks with their past rewards."""
GRADER_ARGUMENTS = 2
"""Arguments by position of a grader of the form `xp`: the answer and the row."""


@dataclass(frozen=True)
class NamedFunction:
    """A function or a class of the user's that a key of the spec names."""

    key: str
    """Key path of the spec."""
    name: str
    """`module:name`, or the path of a script."""
    num_arguments: int | None = None
    """Number of arguments by position. None means that any parameters are legal."""

    @property
    def kind(self) -> str:
        """Last part of the key, which decides how a stage loads it."""
        return self.key.rpartition(".")[2]


def named_functions(spec: RunSpec) -> Iterator[NamedFunction]:
    """All functions and classes of the user's that a spec names."""
    for name, member in spec.env.members.items():
        yield from _functions_of_member(member_key(spec, name), member)
    if spec.algorithm.advantage_fn is not None:
        yield NamedFunction("algorithm.advantage_fn", spec.algorithm.advantage_fn, GROUP_ARGUMENTS)
    script = (spec.sft.data or "").partition(f"{SOLVE}:")[2]
    if script:
        yield NamedFunction("sft.data", script)


def _functions_of_member(key: str, member: EnvMember) -> Iterator[NamedFunction]:
    if ":" in member.provider:
        yield NamedFunction(f"{key}.provider", member.provider)
    if member.serve is not None and member.python is None:
        yield NamedFunction(f"{key}.serve", member.serve)
    if member.grader is not None and member.grader not in READY:
        is_plain = member.grader_form is GraderForm.XP and not member.grader_args
        number = GRADER_ARGUMENTS if is_plain else None
        yield NamedFunction(f"{key}.grader", member.grader, number)
    for source in names_of(member.rows):
        if not is_data(source):
            yield NamedFunction(f"{key}.rows", source)
    for function in member.reward_fn or ():
        yield NamedFunction(f"{key}.reward_fn", function.fn)
    curriculum = member.train.curriculum
    if curriculum is not None and curriculum != BY_PASS_RATE:
        yield NamedFunction(f"{key}.train.curriculum", curriculum, CURRICULUM_ARGUMENTS)
    if member.group_reward_fn is not None:
        yield NamedFunction(f"{key}.group_reward_fn", member.group_reward_fn, GROUP_ARGUMENTS)


def function_faults(spec: RunSpec) -> list[str]:
    """A line for every function of the user's that its file does not have, or that takes another number of arguments;
    a module that is not a Python file is not checked."""
    faults = {
        f"{function.key}={function.name}": function_fault(function.name, function.num_arguments)
        for function in named_functions(spec)
    }
    return [f"{place}: {fault}" for place, fault in faults.items() if fault is not None]


def function_fault(name: str, num_arguments: int | None) -> str | None:
    """What is wrong with `module:name`, with the remedy. None: nothing, or its file cannot be read.

    Args:
        name: `module:name`.
        num_arguments: arguments by position that a function of this name must take. None means any.
    """
    module, _, attribute = name.partition(":")
    if "." in attribute:  # A part of an object, or a file's name with a colon in it.
        return None
    spec = find_module(module)
    if spec is None:
        return (
            f"there is no module {module}; set another name, or start xp in the directory with its file (or name this"
            " directory in PYTHONPATH)"
        )
    file = Path(str(spec.origin))
    if file.suffix != ".py":
        return None
    try:
        names = _names_of(file)
    except SyntaxError as error:
        return f"{file}, line {error.lineno}: {error.msg}; correct the file"
    except (OSError, ValueError, RecursionError):
        return None
    if attribute in names:
        return _arguments_fault(names[attribute], num_arguments, file)
    if "*" in names or "__getattr__" in names:
        return None
    return f"{file} defines no {attribute}{nearest(attribute, names)}; set a name that it has"


@fact
def _names_of(file: Path) -> Mapping[str, ast.stmt]:
    """Names that a file of Python binds; raises OSError, or what `ast.parse` does."""
    return dict(_bound(ast.parse(file.read_bytes()).body))


def _bound(statements: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a module's statements bind, with the statement; the blocks of conditions are part of the module."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name, statement
            case ast.Import() | ast.ImportFrom():
                for alias in statement.names:
                    yield alias.asname or alias.name.partition(".")[0], statement
            case _:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        yield node.id, statement
                    elif isinstance(node, ast.stmt) and node is not statement:
                        yield from _bound([node])


def _arguments_fault(statement: ast.stmt, number: int | None, file: Path) -> str | None:
    """A fault if a function cannot be called with so many arguments by position; decorated ones are not checked."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) or number is None:
        return None
    if statement.decorator_list:
        return None
    given = statement.args
    parameters = [*given.posonlyargs, *given.args]
    num_needed = len(parameters) - len(given.defaults)
    if num_needed <= number and (number <= len(parameters) or given.vararg is not None):
        return None
    return (
        f"{file}, line {statement.lineno}: {statement.name}({ast.unparse(given)}) must take"
        f" {number} argument{'s' * (number > 1)} by position; change its parameters"
    )
