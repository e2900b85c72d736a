"""File, line and column of each value of a composition: Hydra's merge order, with YAML's positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from xp.composition.files import Mark, marks_under, read_file
from xp.composition.groups import (
    GROUPS,
    ROOT,
    Choices,
    Directories,
    compose_groups,
    merge_order,
    with_plugins,
)
from xp.lib.nested import set_at, upwards, value_at

NULLS = ("", "~", "null", "Null", "NULL")
"""Spellings of null in YAML."""
ALTERNATIVES = (("training.num_steps", "training.epochs"), ("sft.num_updates", "sft.epochs"))
"""Pairs of keys of which one is null. The schema refuses a spec in which one file, or the command line, sets both."""


@dataclass(frozen=True)
class Origin:
    """Source of one value."""

    override: str | None
    """The override that set it, as it was typed. None means that a file did."""
    marks: tuple[Mark, ...]
    """Every place in a file that says it, the one that counts last."""


@cache
def file_history(chosen: Choices, config_dirs: Directories) -> dict[str, tuple[Mark, ...]]:
    """Key path of the configuration -> the places that say its value, in merge order."""
    history: dict[str, tuple[Mark, ...]] = {}
    for marks in _marks_in_order(chosen, config_dirs):
        for path, mark in marks.items():
            history[path] = (*history.get(path, ()), mark)
    return history


def _marks_in_order(chosen: Choices, config_dirs: Directories) -> Iterator[Mapping[str, Mark]]:
    """Positions of values in each file of a composition, by key path of the configuration."""
    for config_path, package in merge_order(chosen, config_dirs):
        files = (
            directory / f"{config_path}.yaml" for directory in (ROOT / "conf", ROOT, *config_dirs)
        )
        file = next((file for file in files if file.is_file()), None)
        if file is not None:
            yield marks_under(read_file(file).marks, package)


def origin_of(path: str, overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> Origin:
    """Origin of the value at a key path. The overrides must be legal and of a single run."""
    pairs = [text.partition("=") for text in overrides]
    groups = tuple((key, option) for key, _, option in pairs if key in GROUPS)
    directories = with_plugins(config_dirs)
    composed = compose_groups(groups, directories)
    history = file_history(composed.chosen, directories)
    # The key itself, or the nearest section above it that is one value (`chat_template: {...}`).
    above = list(upwards(path))
    setters = [
        text
        for text, (key, _, _) in zip(overrides, pairs, strict=True)
        if key in above and key not in GROUPS
    ]
    return Origin(
        setters[-1] if setters else None,
        next((history[key] for key in above if key in history), ()),
    )


def settle_files(container: dict[str, Any], chosen: Choices, config_dirs: Directories) -> None:
    """Keeps of each pair the value that the last file in merge order sets."""
    for pair in ALTERNATIVES:
        if all(value_at(container, path) is not None for path in pair):
            last: tuple[str, ...] = ()
            for marks in _marks_in_order(chosen, config_dirs):
                last = (
                    tuple(path for path in pair if path in marks and marks[path].raw not in NULLS)
                    or last
                )
            give_way(container, last)


def give_way(container: dict[str, Any], set_paths: Collection[str]) -> None:
    """Sets, in place, one key of a pair to null where the other one was given a value."""
    for pair in ALTERNATIVES:
        present = [path for path in pair if path in set_paths]
        for path in pair if len(present) == 1 else ():
            if path not in present:
                set_at(container, path, None)


def with_value(values: Sequence[tuple[str, Any]]) -> set[str]:
    """Keys of assignments that give a value, a section's (`training={epochs: 3}`) spelled out."""
    by_path: dict[str, bool] = {}
    for key, value in values:
        spelled = {key: value}
        if isinstance(value, dict):
            spelled = {f"{key}.{name}": child for name, child in value.items()}
        by_path |= {path: value is not None for path, value in spelled.items()}
    return {path for path, has_value in by_path.items() if has_value}
