"""Files that were written earlier, perhaps by somebody else, read as data: whole, bounded, one kind of fault."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from xp.errors import ExitCode, XpError

MAX_BYTES: Final = 64_000_000
"""Largest size of a JSON file that a command reads whole."""


Config = TypeVar("Config")


def text_of(file: Path, code: ExitCode, max_bytes: int = MAX_BYTES) -> str:
    """The text of a regular file.

    Args:
        file: to be read; no pipe and no device, which could be read for ever.
        code: of the fault.
        max_bytes: a larger file is refused unread.

    Raises:
        XpError: it is absent, no regular file, too large or not UTF-8.
    """
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise XpError(f"{file} is not a regular file", code)
            if status.st_size > max_bytes:
                raise XpError(f"{file} has {status.st_size:,} bytes; expected at most {max_bytes:,}", code)
            return opened.read(max_bytes).decode("utf-8")
    except OSError as error:
        raise XpError(f"{file} cannot be read: {error.strerror or error}", code) from None
    except UnicodeDecodeError:
        raise XpError(f"{file} is not UTF-8 text", code) from None


def json_of(file: Path, code: ExitCode, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON file; raises XpError as `text_of` does, and for what is no JSON."""
    text = text_of(file, code, max_bytes)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise XpError(f"{file} is not JSON: {error}", code) from None


def config_of(file: Path, parse: Callable[[str], Config]) -> Config:
    """Configuration of a stage, from a file of its directory. Raises XpError(RUN_DIR) if it cannot be parsed."""
    text = text_of(file, ExitCode.RUN_DIR)
    try:
        return parse(text)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise XpError(f"{file} is not what xp wrote: {type(error).__name__} {error}", ExitCode.RUN_DIR) from None
