"""Copies a job's output to the screen and to `log.txt`, line by line, redacted, with progress bars."""

from __future__ import annotations

import codecs
import os
import re
import select
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Echo
from xp.lib.reading import opened
from xp.lib.secrets.redaction import Redactor
from xp.lib.terminal import RESET, plain, redrawn

PROGRESS_EVERY_S = 30.0
"""Seconds between two states of a progress bar in the file; the screen gets every state."""
MAX_LINE = 256 * 1024
"""Largest number of characters of a line; a longer one is split."""
RESTORE = f"{RESET}\x1b[?25h"
"""Sequence that resets colours and shows the cursor, which a killed job cannot do itself."""

_END = re.compile(r"\r\n|\n|\r(?!\Z)")
"""Line ends; a carriage return at the very end is excluded, since it may be the first half of `\\r\\n`."""
_REDRAW = re.compile(r"\x1b\[[0-9]*A")
IDLE_S = 0.2
TAIL_BYTES = 64 * 1024
"""Size of the end of a log that is shown."""


def is_screen() -> bool:
    """Returns whether the output is a terminal, where colours and redrawn lines are used."""
    return sys.stdout.isatty()


def last_lines(log: Path, run: Path) -> list[str]:
    """The last lines of a run's log; none if it cannot be read."""
    try:
        with opened(log, ExitCode.RUN_DIR, below=run) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except (OSError, XpError):
        return []


class LogStream:
    """Converts the job's bytes to redacted lines."""

    def __init__(self, file: BinaryIO, redactor: Redactor, echo: Echo, *, on_screen: bool) -> None:
        self._file = file
        self._redactor = redactor
        self._echo = echo
        self._on_screen = on_screen
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""
        self._shown = 0
        """Number of characters of the pending text that are on the screen already."""
        self._progress = ""
        """State of a line that is still being redrawn."""
        self._in_file = ""
        """State of that line that the file has already."""
        self._next_progress = 0.0
        self._drew = False
        """True if the job has ever written a terminal control sequence."""

    def feed(self, data: bytes) -> None:
        """Adds output of the job."""
        searched = max(0, len(self._pending) - 1)
        self._pending += self._decoder.decode(data)
        position = 0
        for match in _END.finditer(self._pending, searched):
            self._segment(self._pending[position : match.start()], match.group())
            position = match.end()
        self._pending = self._pending[position:]
        if len(self._pending) > MAX_LINE:
            cut = self._redactor.safe_length(self._pending)
            if cut:
                head = self._pending[:cut]
                self._pending = self._pending[cut:]
                self._segment(head, "\n")

    def idle(self) -> None:
        """Shows an unfinished line on the screen; called after a pause in the output."""
        if not self._on_screen:
            return
        rest = self._pending.rstrip("\r")
        if "\x1b" in rest or self._redactor.redact(rest) != rest:
            return  # a progress bar is shown with its next state, a possible secret with its whole line
        end = self._redactor.safe_length(rest)
        if end > self._shown:
            self._echo(redrawn(rest[self._shown : end]))
            self._shown = end

    def close(self) -> None:
        """Writes the rest as a line, after the job's end."""
        self._pending += self._decoder.decode(b"", final=True)
        rest = self._pending.rstrip("\r")
        self._pending = ""
        if plain(rest).strip() or self._progress:
            self._segment(rest, "\n")
        if self._on_screen and self._drew:
            self._echo(RESTORE)
        self._file.flush()

    def _segment(self, body: str, end: str) -> None:
        text = self._redactor.redact(plain(body))
        self._drew = self._drew or "\x1b" in body
        if self._on_screen:
            self._show(body, text, "\r" if end == "\r" else "\n")
        self._shown = 0
        if end == "\r" or _REDRAW.search(body):
            self._progress = text if text.strip() else self._progress
            if self._progress and monotonic() >= self._next_progress:
                self._in_file = self._progress
                self._line(self._in_file)
            return
        if text.strip() or not self._progress:
            line = text
        else:
            line = self._progress
        if not line or line != self._in_file:
            self._line(line)
        self._progress = self._in_file = ""

    def _show(self, body: str, text: str, end: str) -> None:
        rest = body[self._shown :]
        # Colour codes may split a secret: then the screen gets the redacted line without colours.
        is_clean = text == plain(body)
        drawn = redrawn(rest) if is_clean else self._redactor.redact(plain(rest))
        self._echo(drawn + end)

    def _line(self, text: str) -> None:
        self._progress = ""
        self._next_progress = monotonic() + PROGRESS_EVERY_S
        self._file.write(f"{text}\n".encode())
        self._file.flush()
        if not self._on_screen:
            self._echo(f"{text}\n")


def drain(process: subprocess.Popen[bytes], stream: LogStream) -> None:
    """Reads until the process closes its output, or has ended while an orphan keeps it open."""
    assert process.stdout is not None
    source = process.stdout.fileno()
    while True:
        has_ended = (
            process.poll() is not None
        )  # asked before the look, which then finds all that the process wrote
        ready, _, _ = select.select([source], [], [], 0 if has_ended else IDLE_S)
        if ready:
            data = os.read(source, 65536)
            if not data:
                return
            stream.feed(data)
        elif has_ended:
            return
        else:
            stream.idle()
