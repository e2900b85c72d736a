"""Signals whose handler raises, told again where Python swallows the exception: in a finaliser, or in a callback of the
garbage collector or of a weak reference."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SOON_S = 0.05
"""Seconds until the signal is sent again, when the finaliser has most likely ended; if not, it is sent once more."""


@contextmanager
def told_again(kind: type[BaseException], number: Callable[[], int]) -> Iterator[None]:
    """Context in which a signal is sent to this process again if an exception of its handler is swallowed.

    Args:
        kind: the handler's exceptions.
        number: returns the signal, and prepares the handler for it; called in the thread of the swallowed exception.
    """
    before = sys.unraisablehook

    def look(found: Any) -> None:
        if found.exc_type is None or not issubclass(found.exc_type, kind):
            before(found)
            return
        sending = threading.Timer(SOON_S, os.kill, (os.getpid(), number()))
        sending.daemon = True
        sending.start()

    sys.unraisablehook = look
    try:
        yield
    finally:
        sys.unraisablehook = before
