"""The parser of every command, and the types of its arguments."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from xp.cli.epilogs import EPILOG, folded, groups
from xp.errors import ExitCode, XpError


class Parser(argparse.ArgumentParser):
    """Raises XpError instead of ending the process; a command that takes overrides lists the groups in its help."""

    def format_help(self) -> str:
        if self.description:
            self.description = folded(self.description)
        if any(action.dest == "overrides" and action.nargs == "*" for action in self._actions) and not self.epilog:
            self.epilog = groups()  # reads the files, so only for --help
        elif self.epilog == EPILOG:
            self.epilog = f"{EPILOG}\n{groups()}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise XpError(f"{message}\n{self.format_usage().strip()}", ExitCode.CONFIG)


def directory(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise XpError(f"--config-dir {text}: no such directory")
    return path


def count(text: str) -> int:
    """Argument type: a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def amount(text: str) -> float:
    """Argument type: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def add_spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="group=option|key=value", help="differences from the defaults")
    add_config_dir(parser)


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-dir",
        action="append",
        default=[],
        type=directory,
        metavar="DIR",
        help="directory of your own options",
    )
