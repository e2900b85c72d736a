"""Values of nested mappings by their dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each leaf below a mapping; an empty mapping is a leaf too."""
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, below in value.items():
        yield from leaves(below, f"{path}.{key}" if path else str(key))
