"""Nested mappings: values by their dotted keys, and values grouped by a key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each leaf below a mapping; an empty mapping is a leaf too."""
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, below in value.items():
        yield from leaves(below, f"{path}.{key}" if path else str(key))


def flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted key -> value of each leaf."""
    return dict(leaves(nested)) if nested else {}


def varied(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all mappings; a key that one of them lacks is None there."""
    keys = dict.fromkeys(key for each in values for key in each)
    return [key for key in keys if any(each.get(key) != values[0].get(key) for each in values)]


def value_at(nested: Any, path: str) -> Any:
    """The value of a dotted key; None if there is no such key."""
    for key in path.split("."):
        if isinstance(nested, Mapping):
            nested = nested.get(key)
        else:
            nested = None
    return nested


def set_at(nested: dict[str, Any], path: str, value: Any) -> bool:
    """Sets the value of a dotted key in place; returns False if there is no such key."""
    section, _, key = path.rpartition(".")
    holder = value_at(nested, section) if section else nested
    if not isinstance(holder, dict) or key not in holder:
        return False
    holder[key] = value
    return True


def upwards(path: str) -> Iterator[str]:
    """The dotted key itself, then those of its enclosing sections."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key; keys and values are in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
