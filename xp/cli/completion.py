"""Completion of xp's words in a shell, by argcomplete: commands, flags, groups with their options, and keys."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from xp.errors import ExitCode


def completion_command(args: Namespace) -> int:
    """Prints shell code that completes the arguments of `xp`."""
    import argcomplete

    print(argcomplete.shellcode(["xp"], shell=args.shell))
    return ExitCode.OK


def complete() -> None:
    """Prints completions if a shell requests them, and then ends the process."""
    import argcomplete

    from xp.cli.arguments import COMMANDS
    from xp.cli.parser import build

    os.environ.update(_with_command(os.environ.get("COMP_LINE", ""), COMMANDS))
    parser, _ = build()
    _give_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def _give_completers(parser: Any) -> None:
    """Sets the completer of each argument of a parser and its subparsers, by the argument's name."""
    by_name = {"overrides": words, **dict.fromkeys(("run", "runs", "names"), _runs)}
    by_name |= dict.fromkeys(("key", "keys", "keep"), _task_sets)
    for action in parser._actions:
        if action.dest in by_name:
            action.completer = by_name[action.dest]
        for child in action.choices.values() if isinstance(action.choices, dict) else ():
            _give_completers(child)


def _outputs() -> Path:
    """The outputs root in the command line, else the default one."""
    roots = [
        word for word in os.environ.get("COMP_LINE", "").split() if word.startswith("outputs=")
    ]
    return Path(roots[-1].partition("=")[2] if roots else "outputs")


def _runs(**_: Any) -> Iterator[str]:
    """Names of runs."""
    yield from sorted(file.parent.name for file in (_outputs() / "runs").glob("*/run.json"))


def _task_sets(**_: Any) -> Iterator[str]:
    """Keys of the task sets in the store."""
    yield from sorted(file.parent.name for file in (_outputs() / "tasks").glob("*/manifest.json"))


def _with_command(line: str, commands: Iterable[str]) -> dict[str, str]:
    """The line with `run` inserted if it begins with an override, since argcomplete has no default command."""
    program, _, rest = line.partition(" ")
    first, is_more, _ = rest.partition(" ")
    if (
        first in commands
        or first.startswith("-")
        or (not is_more and any(command.startswith(first) for command in commands))
    ):
        return {}
    return {"COMP_LINE": f"{program} run {rest}", "COMP_POINT": str(len(f"{program} run {rest}"))}


def words(prefix: str, **_: Any) -> Iterator[str]:
    """Overrides that begin with `prefix`: options, runs or values once the name is typed, else groups and keys."""
    from xp.composition import GROUPS, options

    group, is_chosen, _rest = prefix.partition("=")
    if is_chosen:
        values: Iterable[str] = _values(group)
        if group in GROUPS:
            values = options(group)
        elif group in ("run", "resume"):
            values = _runs()
        yield from (f"{group}={value}" for value in values)
        return
    yield from sorted(
        str(file) for ending in ("yaml", "zip") for file in Path().glob(f"*.{ending}")
    )
    yield from (f"{name}=" for name in GROUPS)
    yield from (f"{key}=" for key in _keys())


def _values(key: str) -> Iterator[str]:
    """Legal values of a key, if it has a fixed list of them."""
    legal = _keys().get(key)
    if legal is bool:
        yield from ("true", "false")
    yield from (str(value) for value in _enumerated(legal))


def _enumerated(annotation: Any) -> Iterator[Any]:
    """Values of the enumerations in a type."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (member.value for member in annotation)
        return
    for argument in getattr(annotation, "__args__", ()):
        yield from _enumerated(argument)


def _keys() -> dict[str, Any]:
    """Every key of the schema, as the user types it, with its type; without composing."""
    from xp.spec import RunSpec, schema_fields

    keys = {
        path.replace("env.members.*.", "env."): field.annotation
        for path, field in schema_fields(RunSpec)
    }
    sections = {"env.members", *(key.rpartition(".")[0] for key in keys)}
    return {
        key: annotation
        for key, annotation in keys.items()
        if "*" not in key and key not in sections
    }
