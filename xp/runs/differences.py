"""Keys in which several specs differ, and each spec's values."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

INCIDENTAL: Final = ("outputs", "project", "tracking", "upload_rollouts", "record_prompts", "preparation", "launcher")
"""Sections of a spec that change nothing about its result."""
NAMED: Final = ("algorithm.name", "backend.name", "model.name", "seed", "name")
"""Keys that a listing of runs has as columns of their own."""
FOLLOWS: Final = {"algorithm": "algorithm.name", "backend": "backend.name", "model": "model.name"}
"""Section -> the key that chooses its option; where it differs, the section's other differences are not listed."""


def differing(specs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Lists for each spec its values of the keys in which the specs differ; a key that a spec lacks is None.

    Excluded are keys without effect on a result, the keys in `NAMED`, and sections whose option differs.

    Args:
        specs: dumped RunSpecs.
    """
    varied = {".".join(path): path for path in _varied((), specs)}
    wanted = {key: path for key, path in varied.items() if not _is_left_out(key, varied)}
    return [{key: _at(spec, path) for key, path in wanted.items()} for spec in specs]


MAX_SHOWN: Final = 200
"""Largest number of a value's characters in a table."""


def brief(value: str) -> str:
    """A value as a table shows it: a long one is cut."""
    return value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 3]}..."


def words_of(values: Mapping[str, Any]) -> str:
    """Overrides (`key=value`) that set these values."""
    return " ".join(f"{key}={text(value)}" for key, value in values.items())


def text(value: Any) -> str:
    """A value in the syntax of an override."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    return "[" + ",".join(map(text, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _at(spec: Any, path: Sequence[str]) -> Any:
    for part in path:
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec


def _varied(path: tuple[str, ...], values: Sequence[Any]) -> list[tuple[str, ...]]:
    """Paths of the values that are not all equal; equal sections are compared as a whole."""
    first = values[0] if values else None
    if all(value == first for value in values):
        return []
    sections = [value for value in values if isinstance(value, dict) and value]
    keys = dict.fromkeys(key for section in sections for key in section)
    found = [one for key in keys for one in _varied((*path, key), [_at(value, (key,)) for value in values])]
    is_section = all(value is None or isinstance(value, dict) for value in values)
    return found if sections and is_section else [path, *found]


def _is_left_out(key: str, varied: Collection[str]) -> bool:
    section = key.partition(".")[0]
    return key in NAMED or section in INCIDENTAL or FOLLOWS.get(section) in varied
