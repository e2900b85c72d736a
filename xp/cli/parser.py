"""Reads a command line: one argparse subparser for each command, so that a flag belongs to its command."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from xp.cli.arguments import COMMANDS, Parser
from xp.cli.epilogs import EPILOG
from xp.errors import XpError

_SECTIONS: Final = ("env", "model", "algorithm", "training", "evaluation", "backend", "hardware", "launcher")
_KEYS: Final = ("seed", "name", *_SECTIONS)
"""First words of keys, which are no commands."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line as a namespace with `command`, its arguments and `debug`.

    Raises:
        XpError: CONFIG for an unknown command, a flag of another command, or arguments that are missing or illegal.
    """
    words = list(arguments)
    if not words or (words[0] not in COMMANDS and words[0] not in ("-h", "--help", "--version")):
        if words and _is_word(words[0]):
            raise XpError(_no_command(words[0]))
        words = ["run", *words]
    parser, flags = build()
    is_open = words[0] in COMMANDS and COMMANDS[words[0]].takes_overrides
    if is_open:
        words = [words[0], *_with_values(words[1:], flags[words[0]])]
    words, outputs = (words, Path("outputs")) if is_open or words[0] == "env" else _outputs_of(words)
    asked, unknown = parser.parse_known_args(words)
    for word in unknown:
        _refuse_flag_of_another(word, asked.command, flags)
    if is_open:
        asked.overrides = [*asked.overrides, *unknown]
    elif unknown:
        raise XpError(f"{unknown[0]}: unknown argument; see python -m xp {asked.command} --help")
    asked.outputs = outputs
    return asked


def outputs_of(words: Sequence[str]) -> Path:
    """The outputs root that a command line names, or the usual one; raises XpError for one that is no local path."""
    return _outputs_of(words)[1]


def build() -> tuple[Parser, Mapping[str, frozenset[str]]]:
    """The parser, and the flags of each command."""
    from xp import __version__

    parser = Parser(
        prog="python -m xp",
        usage="python -m xp [COMMAND] [group=option ...] [key=value ...]",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"xp {__version__}")
    found = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", parser_class=Parser, prog="python -m xp"
    )
    flags = {}
    for name, command in COMMANDS.items():
        one = found.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.add(one)
        one.add_argument("--debug", action="store_true", help="show a traceback instead of one message")
        flags[name] = frozenset(flag for action in _actions(one) for flag in action.option_strings)
    return parser, flags


def _outputs_of(words: Sequence[str]) -> tuple[list[str], Path]:
    from xp.spec.section import local_path

    given = [word.partition("=")[2] for word in words if word.startswith("outputs=")]
    try:
        root = Path(local_path(given[-1]) if given else "outputs")
    except ValueError as error:
        raise XpError(f"outputs: {error}") from None
    return [word for word in words if not word.startswith("outputs=")], root


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Actions of a parser and of its subcommands."""
    found = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                found += _actions(child)
    return found


def _is_word(text: str) -> bool:
    """Returns whether a first argument is meant as a command, and not as a flag or an override."""
    return not text.startswith(("-", "~", "+")) and "=" not in text


def _no_command(text: str) -> str:
    close = get_close_matches(text, COMMANDS, 1, 0.5)
    guess = f" (did you mean {close[0]}?)" if close else ""
    if text.partition(".")[0] in _KEYS:
        guess = f"; a key is set as {text}=VALUE, and shown by `python -m xp explain {text}`"
    return (
        f"{text}: no such command{guess}; commands are {', '.join(COMMANDS)}; an override is written key=value or"
        " group=option"
    )


def _refuse_flag_of_another(word: str, command: str, flags: Mapping[str, frozenset[str]]) -> None:
    flag = word.partition("=")[0]
    others = [name for name, own in flags.items() if flag in own and name != command]
    if others:
        own = ", ".join(sorted(name for name in flags[command] if name.startswith("--") and name != "--help"))
        raise XpError(f"{flag} is a flag of {' and '.join(others)}, not of {command}; {command} takes {own}")


def _with_values(words: Sequence[str], own: frozenset[str]) -> list[str]:
    """The words, a flag of another program joined with the value after it, so that one answer is given for both."""
    rest, found = list(words), list[str]()
    while rest:
        word = rest.pop(0)
        is_foreign = word.startswith("--") and word != "--" and "=" not in word and word not in own
        if is_foreign and rest and not rest[0].startswith("-") and "=" not in rest[0]:
            word = f"{word}={rest.pop(0)}"
        found.append(word)
    return found
