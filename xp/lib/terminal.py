"""Makes every text harmless before it is printed: no output of servers, models or files can control a terminal.

Control characters become `\\uXXXX`, which JSON reads as the same character. The colours of xp's own tables are allowed
on a terminal; sequences that move the cursor, set titles or hide text are not.
Of a job's log, whole sequences are removed; its progress bars may move the cursor.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO

CONTROLS: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and line feed, DEL, C1
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # direction of writing, other line ends
    r"\u00ad\u180e\u200b\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible marks
    r"\ud800-\udfff"  # half characters
)
"""Control characters, as part of a character class of a regular expression."""
_CONTROL: Final = re.compile(f"[{CONTROLS}]")
"""First character of every sequence; searching for it alone is ten times as fast as for the whole."""
_SEQUENCE: Final = re.compile(
    r"\x00+"  # a hole of a sparse file
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"  # OSC: title, clipboard, links
    r"|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c\n]*(?:\x9c|\x1b\\)?"  # DCS and its like
    r"|\x1b[ -/]*[0-~]"  # two characters
    rf"|[{CONTROLS}]"
)
_COLOUR: Final = re.compile(r"\x1b\[([0-9;]*)m")
_MOVE: Final = re.compile(r"\r|\x1b\[(?:[0-9;]*[ABCDGJK]|\?25[hl])")
RESET: Final = "\x1b[0m"
_STYLES: Final = frozenset((0, *range(1, 5), *range(22, 25), *range(31, 37), 39, *range(90, 97)))
"""Bold, dim, italic, underlined, their ends, and foreground colours. Backgrounds, black, white and inversion are
excluded: they can give a text the colour of its background."""


def shown(text: str, *, colours: bool = False) -> str:
    """Returns a text with every control character but tab and line feed written out.

    Args:
        text: any text.
        colours: whether sequences that set colours are kept.
    """
    return _replaced(
        text,
        lambda match: (
            match[0] if colours and _is_colour(match[0]) else _CONTROL.sub(_escaped, match[0])
        ),
    )


def plain(text: str) -> str:
    """The text without control sequences."""
    return _replaced(text, lambda _: "")


def redrawn(text: str) -> str:
    """The text with colours and cursor moves, for progress bars, without other sequences (titles, clipboard, queries,
    hidden text)."""
    return _replaced(
        text,
        lambda match: match[0] if _MOVE.fullmatch(match[0]) or _is_colour(match[0]) else "",
    )


def _replaced(text: str, by: Callable[[re.Match[str]], str]) -> str:
    if _CONTROL.search(text):
        return _SEQUENCE.sub(by, text)
    return text


def is_one_output() -> bool:
    """Returns whether standard output and standard error are the same terminal, file or pipe."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # replaced, as in a notebook, or closed
        return False


def _is_colour(sequence: str) -> bool:
    """Returns whether a control sequence sets a colour of xp's own tables."""
    colour = _COLOUR.fullmatch(sequence)
    if colour is None:
        return False
    codes = (int(text[:9] or "0") for text in colour[1].split(";"))
    return _STYLES.issuperset(codes)


class Screen:
    """Replaces standard output or error: every text passes `shown`, and no text ends the command.

    If the stream takes no more (a closed pipe, a full disk, a terminal that is gone), the rest goes to `os.devnull`.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = _devnull() if stream is None else stream
        self.fault: OSError | ValueError | None = None
        """Error of the first write that failed. None means that the whole output was written."""

    def write(self, text: str) -> int:
        self.send(shown(text, colours=self.isatty()))
        return len(text)

    def send(self, text: str) -> None:
        """Writes a text that is harmless already, such as a job's progress bars."""
        try:
            try:
                self.stream.write(text)
            except UnicodeEncodeError:
                encoding = self.stream.encoding or "ascii"
                self.stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:
            self._leave(error)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (OSError, ValueError) as error:
            self._leave(error)

    def isatty(self) -> bool:
        try:
            return self.stream.isatty()
        except (OSError, ValueError):
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _leave(self, error: OSError | ValueError) -> None:
        """Sends the rest to `os.devnull`, also what the stream still holds and what child processes write."""
        self.fault = self.fault or error
        lost = self.stream
        self.stream = _devnull()
        with suppress(OSError, ValueError):
            os.dup2(self.stream.fileno(), lost.fileno())


class Redrawn:
    """A stream for output that is redrawn: it allows colours and moves of the cursor, and no other sequences."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        # A Screen, which would write the moves out, has `send`.
        getattr(self._stream, "send", self._stream.write)(redrawn(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_to_screen(text: str) -> None:
    """The default echo; a closed pipe does not end the run."""
    stream = sys.stdout
    if stream is None:
        return
    try:
        Redrawn(stream).write(text)
        stream.flush()
    except (OSError, ValueError):
        return


@contextmanager
def guarded() -> Iterator[None]:
    """Context manager: replaces both streams by a Screen."""
    out = sys.stdout
    err = sys.stderr
    if isinstance(out, Screen):
        yield
        return
    sys.stdout = Screen(out)
    sys.stderr = Screen(err)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout = out
        sys.stderr = err


def lost_output() -> OSError | ValueError | None:
    """The error by which standard output was lost; None if everything so far was written."""
    sys.stdout.flush()
    if isinstance(sys.stdout, Screen):
        return sys.stdout.fault
    return None


def is_read() -> bool:
    """Returns whether standard output still takes text, for commands that print without end."""
    return not isinstance(sys.stdout, Screen) or sys.stdout.fault is None


def _devnull() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _escaped(control: re.Match[str]) -> str:
    units = control[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def one_line(text: str) -> str:
    """The text without line ends and tabs, which would begin a row or a cell."""
    if re.search(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", text):
        return re.sub(r"\s+", " ", text)
    return text


def markdown_cell(text: str) -> str:
    """The text as a cell of a Markdown table: without columns, rows, HTML, links and images of its own."""
    escaped = one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return escaped.replace("](", "]\\(")
