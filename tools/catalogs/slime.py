"""Writes catalog.json, the flags of the pinned version, again from checkouts; its diff is the upgrade report.

SLIME_PATH=... MEGATRON_PATH=... <a Python that imports sglang> -m tools.catalogs.slime
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

CHECKOUTS = {"slime": "SLIME_PATH", "megatron": "MEGATRON_PATH"}

CATALOG = Path(__file__).parents[2] / "xp/backends/slime/control/catalog.json"


def main() -> None:
    for variable in CHECKOUTS.values():
        sys.path.insert(0, os.environ[variable])
    flags = all_flags()
    pins = {
        "slime": _commit("slime"),
        "megatron": _commit("megatron"),
        "sglang": importlib.metadata.version("sglang"),
    }
    head = json.dumps(pins, indent=1).removesuffix("\n}")
    body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in flags.items())
    CATALOG.write_text(f'{head},\n "flags": {{\n{body}\n }}\n}}\n')


def all_flags() -> dict[str, dict[str, Any]]:
    """All flags of the parsers, by name; needs the checkouts on the path."""
    return dict(sorted((_sglang_flags() | _training_flags() | _early_flags()).items()))


def _training_flags() -> dict[str, dict[str, Any]]:
    """Flags of Megatron's parser, to which Slime adds its own and whose defaults it partly changes."""
    from slime.utils.arguments import get_slime_extra_args_provider

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    import_module("megatron.training.arguments").add_megatron_arguments(parser)
    megatron = set(_flags("megatron", parser))
    get_slime_extra_args_provider()(parser)
    return {
        name: flag | {"origin": "megatron" if name in megatron else "slime"}
        for name, flag in _flags("slime", parser).items()
    }


def _sglang_flags() -> dict[str, dict[str, Any]]:
    from slime.backends.sglang_utils.arguments import add_sglang_arguments

    parser = argparse.ArgumentParser(add_help=False)
    add_sglang_arguments(parser)
    return _flags("sglang", parser)


def _early_flags() -> dict[str, dict[str, Any]]:
    """Flags that Slime parses before all others, with a private parser."""
    from slime.utils.arguments import _pre_parse_mode

    caught: list[argparse.ArgumentParser] = []

    def record(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[str]]:
        caught.append(parser)
        return argparse.Namespace(), []

    with patch.object(argparse.ArgumentParser, "parse_known_args", record):
        _pre_parse_mode()
    return {name: flag for parser in caught for name, flag in _flags("slime", parser).items()}


def _flags(origin: str, parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    return {
        option: _flag(origin, option, action)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }


def _flag(origin: str, option: str, action: argparse.Action) -> dict[str, Any]:
    """Describes one flag, without values that are None and a dest that follows from the name."""
    flag = {
        "origin": origin,
        "dest": None if action.dest == option[2:].replace("-", "_") else action.dest,
        "type": None if action.type is None else getattr(action.type, "__name__", str(action.type)),
        "nargs": action.nargs,
        "choices": None if action.choices is None else sorted(map(_word, action.choices)),
        "default": _plain(action.default),
    }
    return {key: value for key, value in flag.items() if value is not None}


def _word(choice: Any) -> str:
    """A choice as a word of the command line; Megatron's enumerations by their names."""
    if isinstance(choice, Enum):
        return choice.name
    return str(choice)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _commit(name: str) -> str:
    """Commit of a checkout from `SLIME_COMMIT` or `MEGATRON_COMMIT` (for a copy without history), else from git."""
    asked = ["git", "-C", os.environ[CHECKOUTS[name]], "rev-parse", "HEAD"]
    known = os.environ.get(f"{name.upper()}_COMMIT")
    return known or subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
