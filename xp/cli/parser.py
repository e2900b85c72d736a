"""Parses a command line, with one argparse subparser for each command."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from xp.cli.arguments import COMMANDS, INSTEAD, Parser, add_parser
from xp.cli.help_texts import EPILOG
from xp.errors import XpError, nearest

_WORK: Final = (
    "run",
    "prepare",
    "sft",
    "eval",
    "search",
    "install",
    "replay",
    "report",
    "view",
    "env new",
    "tasks profile",
    "tasks prune",
    "runs fetch",
    "runs cancel",
    "runs publish",
    "runs tag",
    "runs trust",
)
"""Commands and actions that do more than print."""
_LISTS: Final = ("words", "names", "keys", "runs", "overrides")
"""Arguments that take any number of words."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line as a namespace with `command`, `called` (with its action), its arguments and `debug`.

    Raises:
        XpError: CONFIG for an unknown command, a flag of another command, or arguments that are missing or illegal.
    """
    words = list(arguments)
    bare = next((word for word in words if word.startswith("=")), None)
    if bare:
        raise XpError(
            f"{bare}: no key before `=`; an override is written key=value, without spaces"
        )
    names_none = not words or words[0] not in (*COMMANDS, "-h", "--help", "--version")
    if names_none:
        if words and not words[0].startswith(("-", "~", "+")) and "=" not in words[0]:
            raise XpError(_no_command(words[0]))
        words = ["run", *words]
    parser, parsers = build()
    is_open = words[0] in COMMANDS and parsers[words[0]].takes_overrides
    outputs = Path("outputs")
    if is_open:
        words = [words[0], *_with_values(words[1:], parsers[words[0]].flags)]
    elif words[0] != "env" and any(word.startswith("outputs=") for word in words):
        from xp.execution.named import outputs_of

        outputs = outputs_of(words)
        words = [word for word in words if not word.startswith("outputs=")]
    words = _with_action(words, parsers)
    args, unknown = parser.parse_known_args(words)
    unknown = unknown if is_open else _with_rest(args, unknown)
    action = getattr(args, "action", None)
    args.called = f"{args.command} {action}" if action else args.command
    if is_open:
        args.overrides = [*args.overrides, *unknown]
        _check_configuration(args)
    elif unknown:
        raise XpError(_not_taken(unknown[0], args.called))
    args.outputs = outputs
    return args


def is_product(args: argparse.Namespace) -> bool:
    """Returns whether the printed text is what the command is for, as in `plan` or with `--json`."""
    if getattr(args, "json", False) or getattr(args, "cfg", None):
        return True
    return args.called not in _WORK or (args.command == "eval" and args.overrides[:1] == ["list"])


@cache
def build() -> tuple[Parser, Mapping[str, Parser]]:
    """The parser, and those of each command and of each action, as `runs list`."""
    from xp import __version__

    parser = Parser(
        prog="python -m xp",
        usage="python -m xp [COMMAND] [group=option ...] [key=value ...]",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"xp {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", prog="python -m xp"
    )
    parsers: dict[str, Parser] = {}
    for name, command in COMMANDS.items():
        parsers[name] = command_parser = add_parser(commands, name, command.help)
        command.add(command_parser)
        for action in command_parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers |= {f"{name} {child}": below for child, below in action.choices.items()}
    return parser, parsers


def _with_action(words: list[str], parsers: Mapping[str, Parser]) -> list[str]:
    """The words with the action moved directly behind its command; `runs` alone becomes `runs list`.

    Raises:
        XpError: there is no such action.
    """
    command, *rest = words
    actions = [name.partition(" ")[2] for name in parsers if name.startswith(f"{command} ")]
    if not actions or (rest and rest[0] in ("-h", "--help")):
        return words
    position = next((at for at, word in enumerate(rest) if not word.startswith("-")), None)
    if position is None:
        if command == "runs":
            return [command, "list", *rest]
        return words
    if rest[position] not in actions:
        instead = INSTEAD.get(f"{command} {rest[position]}")
        if instead:
            guess = f"; use `python -m xp {instead}`"
        else:
            guess = nearest(rest[position], actions)
        raise XpError(
            f"{rest[position]}: no such action of {command}{guess}; actions are {', '.join(actions)}"
        )
    return [command, rest.pop(position), *rest]


def _with_rest(args: argparse.Namespace, unknown: Sequence[str]) -> list[str]:
    """Adds words after an option to the list that the action takes, which argparse ends there; returns the others."""
    values = (getattr(args, name, None) for name in _LISTS)
    rest = next((value for value in values if isinstance(value, list)), None)
    if rest is None:
        return list(unknown)
    rest += [word for word in unknown if not word.startswith("-")]
    return [word for word in unknown if word.startswith("-")]


def _no_command(text: str) -> str:
    from xp.spec import RunSpec

    if text in INSTEAD:
        return f"{text}: no such command; use `python -m xp {INSTEAD[text]}`"
    if text.partition(".")[0] in RunSpec.model_fields:
        return f"{text}: no such command; a key is set as {text}=VALUE, and shown by `python -m xp explain {text}`"
    actions = [name for name in build()[1] if name.endswith(f" {text}")]
    if actions:
        guess = f" (did you mean {' or '.join(actions)}?)"
    else:
        guess = nearest(text, COMMANDS)
    return (
        f"{text}: no such command{guess}; commands are {', '.join(COMMANDS)}; an override is written key=value or"
        " group=option"
    )


def _not_taken(word: str, called: str) -> str:
    """Message for an argument that a command or action does not accept."""
    see = f"see python -m xp {called} --help"
    flag = word.partition("=")[0]
    if not flag.startswith("-"):
        return f"{word}: {called} takes no further argument; {see}"
    legal = sorted(
        name for name in build()[1][called].flags if name.startswith("--") and name != "--help"
    )
    hint = nearest(flag, legal)
    return f"{flag}: no such flag of {called}{hint}; {called} takes {', '.join(legal)}; {see}"


def _check_configuration(args: argparse.Namespace) -> None:
    """Refuses flags of `--cfg` without `--cfg`, since the command would then start a run."""
    for name in ("package", "resolve"):
        if getattr(args, name, None) and not args.cfg:
            raise XpError(
                f"--{name} belongs to --cfg job, which prints the configuration and runs nothing; add --cfg job"
            )


def _with_values(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """The words, with another program's flag joined to its value, so that one message is about both."""
    rest = list(words)
    groups = list[str]()
    while rest:
        word = rest.pop(0)
        is_foreign = (
            word.startswith("--") and word != "--" and "=" not in word and word not in flags
        )
        if is_foreign and rest and not rest[0].startswith("-") and "=" not in rest[0]:
            word = f"{word}={rest.pop(0)}"
        groups.append(word)
    return groups
