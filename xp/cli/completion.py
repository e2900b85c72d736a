"""Completion of xp's words in a shell, by argcomplete: commands, flags, groups with their options, and keys."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any


def script(shell: str) -> str:
    """Shell code that completes the arguments of `xp`."""
    import argcomplete

    return str(argcomplete.shellcode(["xp"], shell=shell))


def complete() -> None:
    """Answer a shell that asks for completions, and end the process."""
    import argcomplete

    from xp.cli.arguments import COMMANDS
    from xp.cli.parser import build

    os.environ.update(_with_command(os.environ.get("COMP_LINE", ""), COMMANDS))
    parser, _ = build()
    for action in parser._actions:
        for name, child in (action.choices or {}).items() if isinstance(action.choices, dict) else ():
            if COMMANDS[name].takes_overrides:
                for one in child._actions:
                    if one.dest == "overrides":
                        one.completer = words
    argcomplete.autocomplete(parser, always_complete_options=False)


def _with_command(line: str, commands: Iterable[str]) -> dict[str, str]:
    """The line with `run` put in where it begins with an override; argcomplete knows no default command."""
    program, _, rest = line.partition(" ")
    first, is_more, _ = rest.partition(" ")
    if first in commands or first.startswith("-") or (not is_more and any(one.startswith(first) for one in commands)):
        return {}
    return {"COMP_LINE": f"{program} run {rest}", "COMP_POINT": str(len(f"{program} run {rest}"))}


def words(prefix: str, **_: Any) -> Iterator[str]:
    """Overrides that begin with `prefix`: the options of a group once its name is typed, else groups and keys."""
    from xp.compose import GROUPS, options

    group, is_chosen, _rest = prefix.partition("=")
    if is_chosen:
        if group in GROUPS:
            yield from (f"{group}={option}" for option in options(group))
        return
    yield from (f"{name}=" for name in GROUPS)
    yield from (f"{key}=" for key in _keys())


def _keys() -> Iterator[str]:
    """Every key of the schema, without composing."""
    from xp.spec import RunSpec
    from xp.spec.section import Section

    def walk(section: type[Section], path: str) -> Iterator[str]:
        for name, field in section.model_fields.items():
            below = _section_in(field.annotation)
            if below is None:
                yield f"{path}{name}"
            else:
                yield from walk(below, f"{path}{name}.")

    return walk(RunSpec, "")


def _section_in(annotation: Any) -> Any:
    from xp.spec.section import Section

    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section_in(one) for one in getattr(annotation, "__args__", ()) if not isinstance(one, str))
    return next((one for one in found if one is not None), None)
