"""Validates names of directories, jobs and files before they are used.

A run directory may come from another user: no text of it is used in a path, in a program's arguments or for a signal
before it is checked here.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

MAX_PATH: Final = 4096
_RUN_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,149}")
_NATIVE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,399}")


def is_name(text: object) -> bool:
    """Returns whether a text can name a run or a stage, and so a directory: letters, digits, `_`, `-`, single dots."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def is_native_id(text: object) -> bool:
    """Returns whether a text can be a launcher's id of a job; it never starts with a dash and has no space."""
    return isinstance(text, str) and _NATIVE_ID.fullmatch(text) is not None


def is_inner_path(text: object) -> bool:
    """Returns whether a text is a relative path that stays below its starting directory."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_PATH or not text.isprintable():
        return False
    parts = PurePosixPath(text).parts
    return bool(parts) and not text.startswith("/") and ".." not in parts
