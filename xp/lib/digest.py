"""Digests: equal values have equal digests, on every machine and in every release. All are hexadecimal sha256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def plain(value: Any) -> str:
    """A value that JSON lacks as text: a picture of PIL, whose own text is its address in memory, by its pixels."""
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return f"{value.mode} {value.size} {bytes_digest(value.tobytes())}"
    return str(value)


_canonical = json.JSONEncoder(
    sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=plain
).encode


def digest_of(value: Any) -> str:
    """Digest of the canonical JSON of a value."""
    return text_digest(canonical_json(value))


def text_digest(text: str) -> str:
    """Digest of a text as UTF-8; a lone surrogate, which a model can write, counts as its JSON escape."""
    return bytes_digest(text.encode("utf-8", "backslashreplace"))


def bytes_digest(content: bytes) -> str:
    """Digest of bytes."""
    return hashlib.sha256(content).hexdigest()


def digest_number(text: str, num_bytes: int) -> int:
    """Pseudo-random whole number from 0 to 256**num_bytes, excluded: the first bytes of a text's digest."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:num_bytes])


def file_digest(path: Path) -> str:
    """Digest of a file of any size; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical_json(value: Any) -> str:
    """JSON with sorted keys, ASCII only, without spaces; values that JSON lacks are written as `str` gives them."""
    return _canonical(value)
