"""xp's word for a native key of a trainer: the field that is rendered to it, or the way to pass it through."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from xp.known_names import foreign_hint

_REFERENCE = ("env=whodunit", "model=qwen2.5-3b-instruct", "hardware=a100x4")
_ALGORITHMS = (
    ("algorithm.importance_correction=token",),
    ("algorithm=cispo",),
    ("algorithm=ppo", "training.critic_learning_rate=1e-5"),
)
"""Whose renderings are searched, in this order: with as many of xp's fields in use as they can have together."""


def hint(text: str) -> str | None:
    """What to write instead of a key from a trainer's own documentation, or None. `text` may carry `=value`."""
    if known := foreign_hint(text):
        return known
    key = text.partition("=")[0].lstrip("+~")
    backends = [name for name, keys in _catalogs().items() if key in keys]
    for name in backends:
        if field := _rendered(name).get(key):
            return f"in xp: {field}"
    if backends:
        passed = " or ".join(f"backend={name} 'backend.overrides.{key.lstrip('-')}=...'" for name in backends)
        return f"a key of {' and '.join(backends)} that xp passes through: {passed}"
    return None


@cache
def _catalogs() -> dict[str, frozenset[str]]:
    """Backend -> the native keys that its committed catalogs know."""
    found: dict[str, frozenset[str]] = {}
    for file in sorted((Path(__file__).parent / "backends").glob("*/catalog*.json")):
        content = json.loads(file.read_text())
        keys = frozenset(content.get("fields") or content.get("flags") or ())
        found[file.parent.name] = found.get(file.parent.name, frozenset()) | keys
    return found


@cache
def _rendered(backend: str) -> dict[str, str]:
    """Native key -> field of the spec, read off what the backend says it makes of each field."""
    from xp.compose import compose
    from xp.plan import render_module

    found: dict[str, str] = {}
    for algorithm in _ALGORITHMS:
        spec = compose([*_REFERENCE, f"backend={backend}", *algorithm])
        for field, meaning in render_module(spec).meanings(spec).items():
            for key in re.findall(r"(?:^|[\s,;])((?:--)?[A-Za-z][\w.-]*)", meaning.receives):
                if key in _catalogs()[backend]:
                    found.setdefault(key, field)
    return found
