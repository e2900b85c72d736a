"""Makes every text harmless before it is printed: no output of servers, models or files can control a terminal.

Control characters become `\\uXXXX`, which JSON reads as the same character. Colours are allowed on a terminal, since
xp's own tables have them; sequences that move the cursor, set titles or hide text are not.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

MAX_LINE: Final = 10_000
"""Largest number of a line's characters on a terminal; a pipe gets the whole line."""
CONTROLS: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # direction of writing, other line ends
    r"\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"  # invisible marks, half characters
)
"""Control characters, as part of a character class of a regular expression."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
_COLOUR_OR_CONTROL: Final = re.compile(rf"(\x1b\[(?!(?:[0-9];)*8[;m])[0-9;]*m)|[{CONTROLS}]")


def shown(text: str, *, colours: bool = False, max_line: int | None = None) -> str:
    """Returns a text with every control character but tab and line feed written out.

    Args:
        text: any text.
        colours: whether sequences that set colours are kept.
        max_line: longer lines are cut, with a note on the number of characters left out; None: no limit.
    """
    if colours:
        text = _COLOUR_OR_CONTROL.sub(lambda match: match[1] or _written(match[0]), text)
    else:
        text = _CONTROL.sub(lambda match: _written(match[0]), text)
    if max_line is not None and len(text) > max_line:
        text = "\n".join(_cut(line, max_line) for line in text.split("\n"))
    return text


class Screen:
    """Replaces standard output or error: every text passes `shown`."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        """The original stream, for a job's progress bars, which xp.launchers.node.log has filtered."""

    def write(self, text: str) -> int:
        is_terminal = self.stream.isatty()
        self.stream.write(shown(text, colours=is_terminal, max_line=MAX_LINE if is_terminal else None))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Context manager: replaces both streams by a Screen."""
    out, err = sys.stdout, sys.stderr
    if isinstance(out, Screen):
        yield
        return
    sys.stdout, sys.stderr = Screen(out), Screen(err)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err


def _written(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[:most]}... ({len(line) - most:,} more characters)"
