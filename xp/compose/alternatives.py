"""Pairs of keys that exclude each other: setting one of them sets the other, from an earlier source, to null."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from xp.compose.origins import last_to_say

ALTERNATIVES = (("training.num_steps", "training.epochs"),)
"""Pairs of keys of which one is null. The schema refuses a spec in which one file, or the command line, sets both."""


def settle_files(container: dict[str, Any], chosen: tuple[tuple[str, str], ...], config_dirs: tuple[Path, ...]) -> None:
    """Keeps of each pair the value that the last file in merge order sets."""
    for pair in ALTERNATIVES:
        if all(_value(container, path) is not None for path in pair):
            give_way(container, last_to_say(pair, chosen, config_dirs))


def give_way(container: dict[str, Any], given: Collection[str]) -> None:
    """Set to null, in place, the other key of a pair of which one is among those that were given a value."""
    for pair in ALTERNATIVES:
        said = [path for path in pair if path in given]
        for path in pair if len(said) == 1 else ():
            section, _, name = path.partition(".")
            if path not in said and isinstance(container.get(section), dict):
                container[section][name] = None


def with_value(values: Sequence[tuple[str, Any]]) -> set[str]:
    """Keys of assignments that give a value, a section's (`training={epochs: 3}`) spelled out."""
    given: dict[str, bool] = {}
    for key, value in values:
        spelled = {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) else {key: value}
        given |= {path: one is not None for path, one in spelled.items()}
    return {path for path, has_value in given.items() if has_value}


def other_of(path: str) -> str | None:
    """The other key of the pair, for a key that has one."""
    return next((one for pair in ALTERNATIVES if path in pair for one in pair if one != path), None)


def _value(container: dict[str, Any], path: str) -> Any:
    section, _, name = path.partition(".")
    found = container.get(section)
    return found.get(name) if isinstance(found, dict) else None
