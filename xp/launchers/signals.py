"""Converts INT, TERM and HUP to an orderly shutdown of the running job."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from xp.errors import ExitCode, XpError
from xp.launchers.base import Launch, Launcher

DEBOUNCE_S = 0.25
"""Seconds within which two INTs count as one key press, forwarded twice by a wrapper."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def install(handle: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Makes `handle` the handler of HANDLED; returns the handlers before. Does nothing in other threads than the main
    one.

    An ignored HUP (nohup) stays ignored. INT, which a shell ignores for its background jobs, does not: an INT that is
    sent must end the command.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    wanted = [number for number in HANDLED if not (number == signal.SIGHUP and is_nohup)]
    return {number: signal.signal(number, handle) for number in wanted}


def restore(previous: Mapping[int, Any]) -> None:
    """Puts the handlers back that `install` returned."""
    for number, handler in previous.items():
        signal.signal(number, handler)


class Signals:
    """Context manager: a signal stops the running job, a second Ctrl-C kills it; no effect in other threads."""

    def __init__(self, run_id: str, resume: str) -> None:
        self.number: int | None = None
        """The first signal; None: there was none."""
        self._run_id = run_id
        self._resume = resume
        self._received = 0.0
        self._job: tuple[Launcher, Launch] | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._previous = install(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        restore(self._previous)

    @contextmanager
    def stopping(self, launcher: Launcher, launch: Launch) -> Iterator[None]:
        """Context manager: signals stop this job, including a signal from just before."""
        self._job = (launcher, launch)
        try:
            if self.number is not None:
                launcher.cancel(launch)
            yield
        finally:
            self._job = None

    def check(self) -> None:
        """Raises XpError(INTERRUPTED or TERMINATED) if there was a signal."""
        if self.number is not None:
            word = signal.Signals(self.number).name
            code = ExitCode.INTERRUPTED if self.number == signal.SIGINT else ExitCode.TERMINATED
            raise XpError(f"{self._run_id} was stopped by {word}\nresume: {self._resume}", code)

    def sleep(self, seconds: float) -> None:
        """Sleeps like time.sleep, but a signal ends the wait."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.check()
            time.sleep(min(0.1, max(0.0, end - time.monotonic())))
        self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_second = self.number == signal.SIGINT == number and time.monotonic() - self._received >= DEBOUNCE_S
        if self.number is None:
            self.number, self._received = number, time.monotonic()
        if self._job is not None:
            launcher, launch = self._job
            launcher.cancel(launch, now=is_second)
