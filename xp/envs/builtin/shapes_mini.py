"""Pictures drawn by code, and a question that only the picture answers: how many red circles?

A picture is a board of 2 x 2 places of 28 pixels, each empty or with a shape. The picture is written here and not by an
image library, so that its bytes, and with them its digest, are the same everywhere.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from math import isqrt
from typing import Any, Final

from xp.envs.builtin.graders import number

COLOURS: Final[Mapping[str, int]] = {"red": 1, "green": 2, "blue": 3}
"""Name -> index in the palette, whose first entry is the white ground."""
PALETTE: Final = bytes((255, 255, 255, 220, 30, 30, 30, 160, 60, 40, 70, 220, 0, 0, 0))
BLACK: Final = 4
SHAPES: Final = ("circle", "square")
SIDE: Final = 2
"""Places in a row, and rows."""
CELL: Final = 28
"""Pixels of a place's side."""
MOST: Final = 3
"""Largest number of shapes that are asked for; each number from 0 is equally frequent."""
NUM_ROWS: Final = {"train": 2000, "test": 128}

Board = Sequence[tuple[str, str] | None]
"""Colour and shape of each place, row by row."""


class ShapesMini:
    """1 if the last number of the answer is the number of these shapes, else 0.

    Args:
        blind: whether the pictures are black, as a control: no policy is then right more often than a guess.
    """

    def __init__(self, *, blind: bool = False) -> None:
        self._is_blind = blind

    def rows(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The same pictures and questions everywhere and always."""
        return {
            split: [self._row(split, index) for index in range(size)]
            for split, size in NUM_ROWS.items()
        }

    def grade(self, answer: str, row: Mapping[str, Any]) -> float:
        return number(answer, row)

    def _row(self, split: str, index: int) -> Mapping[str, Any]:
        board, colour, shape, count = puzzle(f"{split}/{index}")
        return {
            "prompt": f"How many {colour} {shape}s?",
            "image": drawn([None] * SIDE**2, ground=BLACK) if self._is_blind else drawn(board),
            "answer": str(count),
        }


def puzzle(seed: str) -> tuple[Board, str, str, int]:
    """A board, a colour and a shape, and how many of these the board has."""
    draw = random.Random(seed)
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    wanted = draw.choice(kinds)
    others = [kind for kind in kinds if kind != wanted]
    count = draw.randint(0, MOST)
    board: list[tuple[str, str] | None] = [wanted] * count
    while len(board) < SIDE**2:
        board.append(draw.choice([*others, None]))
    draw.shuffle(board)
    return board, *wanted, count


def drawn(board: Board, ground: int = 0) -> bytes:
    """The board as a PNG file with a palette, not compressed.

    Args:
        board: the shapes of a square.
        ground: index of the ground's colour.
    """
    side = isqrt(len(board))
    lines = []
    for row in range(side):
        stamps = [_stamp(place, ground) for place in board[row * side : (row + 1) * side]]
        lines += [b"\0" + b"".join(parts) for parts in zip(*stamps, strict=True)]
    size = side * CELL
    header = struct.pack(">IIBBBBB", size, size, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", PALETTE),
        # Compressors differ between releases, and so would the digest.
        (b"IDAT", zlib.compress(b"".join(lines), level=0)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


@cache
def _stamp(place: tuple[str, str] | None, ground: int) -> tuple[bytes, ...]:
    """The lines of one place."""
    if place is None:
        return (bytes([ground]) * CELL,) * CELL
    colour, shape = place
    middle = (CELL - 1) / 2
    radius = CELL * 0.38
    lines = []
    for y in range(CELL):
        line = bytearray()
        for x in range(CELL):
            across = abs(x - middle)
            down = abs(y - middle)
            if shape == "circle":
                is_inside = across**2 + down**2 <= radius**2
            else:
                is_inside = max(across, down) <= radius
            line.append(COLOURS[colour] if is_inside else ground)
        lines.append(bytes(line))
    return tuple(lines)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
