"""Birth time of a directory, which no archive and no copy can bring: Python's os.stat lacks it on Linux."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

_CURRENT_DIRECTORY: Final = -100
_WANTED: Final = 0x800
"""Bit of `stx_mask` for the birth time (STATX_BTIME)."""
_NUM_BYTES: Final = 256
"""Size of `struct statx`, whose layout is the same on every architecture."""
_BIRTH: Final = struct.Struct("=qI")
_BIRTH_AT: Final = 80


def birth_time(path: Path) -> str | None:
    """Time at which a file or directory was made; None: the platform or the file system does not say.

    Raises:
        OSError: there is no such file.
    """
    birth = getattr(path.stat(), "st_birthtime", None)
    return _of_linux(path) if birth is None else repr(birth)


def _of_linux(path: Path) -> str | None:
    try:
        statx = ctypes.CDLL(None).statx
    except (OSError, TypeError, AttributeError):  # a C library without it
        return None
    found = ctypes.create_string_buffer(_NUM_BYTES)
    if statx(_CURRENT_DIRECTORY, os.fsencode(path), 0, _WANTED, found) != 0:
        return None  # the kernel, or a container's filter of system calls, refuses it
    (mask,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = _BIRTH.unpack_from(found, _BIRTH_AT)
    return f"{seconds}.{nanoseconds:09d}" if mask & _WANTED and seconds else None
