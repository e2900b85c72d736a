"""Shutdown on request: Ray kills its processes at once, so they are asked to close their sessions first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

OPEN: Final = "open"
"""File that says that a process of Ray's may hold sessions."""
STOP: Final = "stop"
CLOSED: Final = "closed"
PATIENCE_S: Final = 5.0
"""Seconds that the program waits; a launcher's own grace period is longer."""
POLL_S: Final = 0.2


def close_when_asked(folder: Path, close: Callable[[], None]) -> None:
    """In Ray's process: watches for the request in a thread, after removing the files of an earlier try."""
    for name in (STOP, CLOSED):
        (folder / name).unlink(missing_ok=True)
    (folder / OPEN).touch()

    def watch() -> None:
        while not (folder / STOP).exists():
            time.sleep(POLL_S)
        close()
        (folder / CLOSED).touch()

    threading.Thread(target=watch, name="xp-shutdown", daemon=True).start()


def ask_to_close(folder: Path, patience_s: float = PATIENCE_S) -> bool:
    """In the program: asks, waits for the answer, and returns whether everything is closed."""
    if not (folder / OPEN).exists():
        return True
    (folder / STOP).touch()
    end = time.monotonic() + patience_s
    while not (folder / CLOSED).exists():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S / 4)
    return True
