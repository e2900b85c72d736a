"""Limits of a spec: one that is larger is neither read back nor made."""

from __future__ import annotations

import json
from typing import Any

from xp.compose.files import MAX_DEPTH

MAX_BYTES = 1_000_000
"""Largest size of a spec; those of xp's own options have 6 kB."""
MAX_NODES = 20_000
"""Largest number of values, lists and sections of a spec; those of xp's own options have 600."""


def excess(spec: Any, max_bytes: int = MAX_BYTES) -> str | None:
    """Returns why a spec is larger than those that are read back; None: it is not.

    Args:
        spec: plain data.
        max_bytes: of its JSON.
    """
    todo, nodes = [(1, spec)], 0
    while todo:
        depth, node = todo.pop()
        nodes += 1
        if not isinstance(node, dict | list):
            continue
        if depth > MAX_DEPTH:
            return f"nested more than {MAX_DEPTH} deep"
        nodes += len(node) if isinstance(node, dict) else 0
        todo += [(depth + 1, child) for child in (node.values() if isinstance(node, dict) else node)]
        if nodes + len(todo) > MAX_NODES:
            return f"more than {MAX_NODES:,} values"
    size = len(json.dumps(spec))
    return f"{size:,} bytes; expected at most {max_bytes:,}" if size > max_bytes else None
