"""INT, TERM and HUP end a program in order: as an exception in the main thread, or by cancelling a running job."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Self

from xp.errors import ExitCode, XpError

DEBOUNCE_S: Final = 0.25
"""Seconds within which two INTs count as one key press, forwarded twice by a wrapper."""
HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignal(KeyboardInterrupt):
    """A signal ends the program; a KeyboardInterrupt, because Ray's calls lose any other exception of a handler."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED


class Signals:
    """Context manager: notes the first signal, and cancels the job of `cancelling`.

    An ignored HUP (nohup) stays ignored. INT, which a shell ignores for its background jobs, does not: an INT that is
    sent must end the command. It has no effect in other threads than the main one.

    Args:
        run_id: run, for the message of `check`.
        resume: command that continues it.
    """

    def __init__(self, run_id: str = "", resume: str = "") -> None:
        self.number: int | None = None
        """The first signal. None means that there was none."""
        self._run_id = run_id
        self._resume = resume
        self._received = 0.0
        self._cancel: Callable[[bool], None] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            numbers = [number for number in HANDLED if not (number == signal.SIGHUP and is_nohup)]
            self._previous = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def cancelling(self, cancel: Callable[[bool], None]) -> Iterator[None]:
        """Context manager: signals call `cancel`, including one from just before; its argument: a second Ctrl-C."""
        self._cancel = cancel
        try:
            if self.number is not None:
                cancel(False)
            yield
        finally:
            self._cancel = None

    def check(self) -> None:
        """Raises XpError(INTERRUPTED or TERMINATED) if there was a signal."""
        if self.number is not None:
            stopped = StopSignal(self.number)
            raise XpError(f"{self._run_id} was {stopped}\nresume: {self._resume}", stopped.code)

    def sleep(self, seconds: float) -> None:
        """Sleeps like time.sleep, but a signal ends the wait."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))
        self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = (
            self.number == signal.SIGINT == number
            and time.monotonic() - self._received >= DEBOUNCE_S
        )
        if self.number is None:
            self.number = number
            self._received = time.monotonic()
        if self._cancel is not None:
            self._cancel(is_second)


@contextmanager
def stopping() -> Iterator[None]:
    """Context in which the first signal raises Stopped, and a second Ctrl-C ends the process at once."""
    with Signals() as signals:
        raised = False

        def stop(is_second: bool) -> None:
            nonlocal raised
            assert signals.number is not None
            stopped = StopSignal(signals.number)
            if is_second:
                os._exit(stopped.code)
            if not raised:
                raised = True
                raise stopped

        try:
            with signals.cancelling(stop):
                yield
        except KeyboardInterrupt as error:
            if signals.number is None or isinstance(error, StopSignal):
                raise
            raise StopSignal(
                signals.number
            ) from None  # Ray's calls raise a KeyboardInterrupt of their own.
