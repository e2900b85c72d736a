"""Slime's command line as data: the flags of the pinned version, and checks of their values.

Slime ignores unknown flags (two of its three parsers are set to do so), so xp checks every flag itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest

Flags = dict[str, tuple[str, ...] | None]
"""Flag -> its values; () is a switch, None a flag that xp does not write."""

PARSERS: Mapping[str, Callable[[str], object]] = {"int": int, "float": float, "loads": json.loads}
"""Type in the catalog -> function that raises ValueError for an illegal text."""

OVERRIDES = Path(__file__).with_name("overrides.toml")
"""Judgements of flags that a user may set."""


@dataclass(frozen=True)
class Flag:
    """Declaration of a flag in the pinned version."""

    origin: str
    """Source of the flag: slime, megatron or sglang."""
    dest: str
    type: str | None = None
    nargs: int | str | None = None
    choices: Sequence[str] | None = None
    default: Any = None


@dataclass(frozen=True)
class FlagCatalog:
    """The flags of one version of Slime with the Megatron-LM and SGLang that it pins."""

    slime: str
    """Commit."""
    megatron: str
    """Commit."""
    sglang: str
    """Version."""
    flags: Mapping[str, Flag]


@cache
def catalog() -> FlagCatalog:
    """The catalog, which tools.catalogs.slime makes."""
    raw = json.loads(Path(__file__).with_name("catalog.json").read_text())
    flags = {
        name: Flag(**{"dest": name[2:].replace("-", "_")} | flag)
        for name, flag in raw["flags"].items()
    }
    return FlagCatalog(raw["slime"], raw["megatron"], raw["sglang"], flags)


def words(flags: Flags) -> tuple[str, ...]:
    """The command line."""
    return tuple(
        word for name, values in flags.items() if values is not None for word in (name, *values)
    )


def override_flags(overrides: Mapping[str, Any]) -> Flags:
    """Flags of `backend.overrides`: names without leading dashes; true is a switch, a list several values, a mapping
    JSON."""
    return flags_of({f"--{name}": content for name, content in overrides.items()})


def flags_of(keys: Mapping[str, Any]) -> Flags:
    """Python values as words of a command line; None and false omit the flag."""
    return {name: _values(content) for name, content in keys.items()}


def fault(name: str, values: tuple[str, ...] | None) -> str | None:
    """Returns why the pinned version would reject or ignore the flag; None if it accepts it."""
    flags = catalog().flags
    if name not in flags:
        known = nearest(name.removeprefix("--"), [known.removeprefix("--") for known in flags])
        return f"Slime ({catalog().slime[:8]}) has no such flag and would ignore it{known}; leave it out"
    flag = flags[name]
    if values is None:
        return "a switch is given or not: leave it out, or use its opposite if it has one"
    return _wrong_number(flag, values) or next(
        filter(None, (_wrong_value(flag, value) for value in values)), None
    )


def _wrong_number(flag: Flag, values: tuple[str, ...]) -> str | None:
    if flag.nargs == 0:
        if values:
            return f"it takes no value, but got {' '.join(values)}; give true"
        return None
    expected = flag.nargs if isinstance(flag.nargs, int) else 1
    if flag.nargs in ("*", "?") or (flag.nargs == "+" and values) or len(values) == expected:
        return None
    return (
        f"it needs {expected} value{'s' * (expected > 1)}, but got {len(values)}; give {expected}"
    )


def _wrong_value(flag: Flag, text: str) -> str | None:
    if flag.choices is not None and text not in flag.choices:
        return f"{text!r} is not one of {', '.join(flag.choices)}; set one of them"
    try:
        PARSERS.get(flag.type or "", str)(text)
    except ValueError:
        if flag.type == "loads":
            kind = "JSON"
        else:
            kind = f"of type {flag.type}"
        return f"{text!r} is not {kind}; set another value"
    return None


def _values(content: Any) -> tuple[str, ...] | None:
    if content is None or content is False:
        return None
    if content is True:
        return ()
    if isinstance(content, Mapping):
        return (json.dumps(content),)
    if isinstance(content, list | tuple):
        values = content
    else:
        values = (content,)
    return tuple(repr(value) if isinstance(value, float) else str(value) for value in values)


def with_aliases(owned: Mapping[str, str]) -> dict[str, str]:
    """Flag -> its field, with the other names of xp's flags."""
    by_dest = {
        catalog().flags[name].dest: field
        for name, field in owned.items()
        if name in catalog().flags
    }
    return {
        name: by_dest[flag.dest] for name, flag in catalog().flags.items() if flag.dest in by_dest
    } | dict(owned)
