"""A parser built from the committed catalog: reads a command line as the pinned Slime does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from xp.backends.slime.control.flags import Flag, catalog

TYPES: dict[str | None, Callable[[str], Any]] = {"int": int, "float": float, "loads": json.loads}


def parse(words: Sequence[str]) -> dict[str, Any]:
    """dest -> value of every flag that the words hold; unlike Slime, exits on a flag that it does not know."""
    return vars(_parser().parse_args(words))


@cache
def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    for name, flag in catalog().flags.items():
        _add(parser, name, flag)
    return parser


def _add(parser: argparse.ArgumentParser, name: str, flag: Flag) -> None:
    if flag.nargs == 0:
        parser.add_argument(name, dest=f"{flag.dest}|{name}", action="store_true")
        return
    parser.add_argument(
        name,
        dest=flag.dest,
        type=TYPES.get(flag.type, str),
        nargs=flag.nargs,
        choices=None if flag.choices is None or flag.type == "int" else flag.choices,
    )


def is_on(parsed: dict[str, Any], name: str) -> bool:
    """Whether a switch is on the command line."""
    return bool(parsed.get(f"{catalog().flags[name].dest}|{name}", False))
