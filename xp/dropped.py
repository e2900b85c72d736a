"""Repeats an exception of a signal handler that Python has dropped.

A handler runs between any two instructions of the main thread. An exception that it raises inside a finalizer
(`__del__`) or a callback of the garbage collector ends only that: Python prints it and goes on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

PAUSE_S: Final = 0.01
"""Seconds after which a dropped exception is repeated: the finalizer has ended by then."""


@contextmanager
def repeated(kind: type[BaseException], repeat: Callable[[], None]) -> Iterator[None]:
    """Context in which `repeat` is called shortly after Python has dropped an exception of this kind.

    Args:
        kind: what the handler raises.
        repeat: sends the signal again; called in a thread of its own.
    """
    before = sys.unraisablehook

    def look(dropped: Any) -> None:
        if issubclass(dropped.exc_type, kind):
            again = threading.Timer(PAUSE_S, repeat)
            again.daemon = True
            again.start()
        else:
            before(dropped)

    sys.unraisablehook = look
    try:
        yield
    finally:
        if sys.unraisablehook is look:
            sys.unraisablehook = before
