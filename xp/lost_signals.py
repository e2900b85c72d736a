"""Keeps signals from being lost: repeats an exception that Python has dropped, and waits so that a handler runs.

A handler runs between any two instructions of the main thread. An exception that it raises inside a finalizer
(`__del__`) or a callback of the garbage collector ends only that: Python prints it and goes on. A signal that arrives
just before the main thread begins to wait does not end the wait: its handler runs when the wait is over.
"""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

PAUSE_S: Final = 0.01
"""Seconds after which a dropped exception is repeated: the finalizer has ended by then."""
LOOK_S: Final = 0.5
"""Seconds between two interruptions of a wait, in which a late signal's handler runs."""

T = TypeVar("T")


def next_of(inbox: queue.SimpleQueue[T]) -> T:
    """Returns the next object of a queue. It waits for one without a limit, but delays no signal by more than LOOK_S.

    For the main thread. A plain `inbox.get()` may delay a signal's handler until there is an object.
    """
    while True:
        with suppress(queue.Empty):
            return inbox.get(timeout=LOOK_S)


@contextmanager
def repeated(kind: type[BaseException], repeat: Callable[[], None]) -> Iterator[None]:
    """Context in which `repeat` is called shortly after Python has dropped an exception of this kind.

    Args:
        kind: what the handler raises.
        repeat: sends the signal again; called in a thread of its own.
    """
    before = sys.unraisablehook
    main = threading.main_thread().ident
    waiting: list[bool] = []

    def look(dropped: Any) -> None:
        try:
            if not issubclass(dropped.exc_type, kind):
                before(dropped)
                return
        except kind:
            pass  # The signal came while another exception was printed.
        if not waiting:
            waiting.append(True)
            # Unlike Thread.start, this takes no lock that an interrupted instruction of this thread may have.
            _thread.start_new_thread(repeat_later, ())

    def repeat_later() -> None:
        # What a handler raises inside the hook is dropped too, and no hook is called for that.
        time.sleep(PAUSE_S)
        while _is_running(look, main):
            time.sleep(PAUSE_S)
        waiting.clear()
        repeat()

    sys.unraisablehook = look
    try:
        yield
    finally:
        if sys.unraisablehook is look:
            sys.unraisablehook = before


def _is_running(function: Any, thread: int | None) -> bool:
    """Returns whether a call of this function is on the thread's stack."""
    frame = None if thread is None else sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
