"""Removes the GPU code of other architectures from a compiled library.

Offsets and headers stay, so the library loads as before, and the zeroes compress to nothing. Kept of each fat binary:
the machine code of the architecture; where it has none, the PTX of this and older ones, which the driver compiles.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

MAGIC = 0xBA55ED50
PTX = 1
MACHINE_CODE = 2


def prune(source: Path, target: Path, arch: int) -> tuple[int, int]:
    """Copies a library without the code of other architectures; returns the bytes that are kept and removed.

    Args:
        source: an ELF64 library.
        target: the copy.
        arch: the architecture, as 90 for sm_90 and sm_90a.
    """
    data = bytearray(source.read_bytes())
    kept = 0
    removed = 0
    for offset, size in _sections(data, b".nv_fatbin"):
        at = offset
        while at + 16 <= offset + size:
            magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
            if magic != MAGIC:
                at += 8
                continue
            end = at + header + length
            entries = list(_entries(data, at + header, end))
            has_own = any(kind == MACHINE_CODE and own == arch for kind, own, _, _ in entries)
            for kind, own, begin, length in entries:
                if own == arch if kind == MACHINE_CODE else own <= arch and not has_own:
                    kept += length
                else:
                    removed += length
                    data[begin : begin + length] = bytes(length)
            at = end
    target.write_bytes(data)
    target.chmod(source.stat().st_mode)
    return kept, removed


def _entries(data: bytearray, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Kind, architecture, offset and length of each part of a fat binary."""
    while at < end:
        kind, _, header, length = struct.unpack_from("<HHIQ", data, at)
        (arch,) = struct.unpack_from("<I", data, at + 28)
        yield kind, arch, at + header, length
        at += header + length


def _sections(data: bytearray, name: bytes) -> Iterator[tuple[int, int]]:
    """Offset and size of each section of this name."""
    (start,) = struct.unpack_from("<Q", data, 40)
    size, number, names = struct.unpack_from("<HHH", data, 58)
    (texts,) = struct.unpack_from("<Q", data, start + names * size + 24)
    for index in range(number):
        at = start + index * size
        begin = texts + struct.unpack_from("<I", data, at)[0]
        if data[begin : data.index(b"\0", begin)] == name:
            yield struct.unpack_from("<QQ", data, at + 24)
