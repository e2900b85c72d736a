"""Digests of JSON-able values: equal values have equal digests, on every machine and in every release."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str).encode


def digest_of(value: Any) -> str:
    """Hexadecimal sha256 of the canonical JSON of a value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, ASCII only, without spaces; values that JSON lacks are written as `str` gives them."""
    return _canonical(value)
