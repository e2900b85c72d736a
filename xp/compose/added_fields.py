"""Recorded specs of earlier versions, completed: each field that the spec gained since gets its former value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from xp.spec import RunSpec, former_values
from xp.spec.fields import ANY

ADDED: Final[Mapping[str, Any]] = former_values(RunSpec)
"""Path of a field -> its former value, or a function from the spec to it."""


def fill(spec: dict[str, Any]) -> list[str]:
    """Give a recorded spec in place the fields that it was recorded without; returns them as `path=value`.

    A section that is missing, or no mapping, stays as it is.
    """
    filled = list(_renamed(spec))
    for path, former in ADDED.items():
        *parents, last = path.split(".")
        for place, section in _sections(spec, parents):
            if last not in section and section:
                value = section[last] = former(spec) if callable(former) else _copy(former)
                text = value if isinstance(value, str) else json.dumps(value)
                filled.append(f"{'.'.join([*place, last])}={text}")
    return filled


def _renamed(spec: dict[str, Any]) -> Iterator[str]:
    """Moves values from the fields that held them before into those that hold them now."""
    for _, build in _sections(spec, ["model", "build"]):
        if "hasty_share" in build:
            build["players"] = {name: build.pop(f"{name}_share", 0.0) for name in ("hasty", "sloppy")}
            yield f"model.build.players={json.dumps(build['players'])}"


def _sections(node: Any, parts: list[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Sections at a path, with the names that lead to them."""
    if isinstance(node, list):
        node = {str(number): child for number, child in enumerate(node)}
    if not isinstance(node, dict):
        return
    if not parts:
        yield [], node
        return
    for name in list(node) if parts[0] == ANY else parts[:1]:
        for place, section in _sections(node.get(name), parts[1:]):
            yield [name, *place], section


def _copy(value: Any) -> Any:
    return value.copy() if isinstance(value, (dict, list)) else value
