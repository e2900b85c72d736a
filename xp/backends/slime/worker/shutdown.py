"""Shutdown on request, so that sessions are closed before Ray kills its processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

OPEN: Final = "open"
"""File that exists while a Ray process may have open sessions."""
STOP: Final = "stop"
CLOSED: Final = "closed"
PATIENCE_S: Final = 5.0
"""Seconds that the program waits, less than a launcher's grace period."""
POLL_S: Final = 0.2


def close_when_asked(folder: Path, close: Callable[[], None]) -> None:
    """Waits for the request in a thread of the Ray process; removes the files of an earlier attempt first."""
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
    """Requests the shutdown in the program, waits for the answer, and returns whether all sessions are closed."""
    if not (folder / OPEN).exists():
        return True
    (folder / STOP).touch()
    end = time.monotonic() + patience_s
    while not (folder / CLOSED).exists():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S / 4)
    return True
