"""Time limit of a check; the current phase is printed to standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 5.0
"""Seconds between two lines about the same phase."""
CLOSE_S: Final = 10.0
"""Seconds to close sessions and servers after the time limit."""


class Watch:
    """Current phase and time limit of one environment's check.

    Args:
        name: name of the environment, printed before each line.
        ends: end of the time, on the monotonic clock. None means no limit.
    """

    def __init__(self, name: str, ends: float | None = None) -> None:
        self._name = name
        self._ends = ends
        self._began = self._since = time.monotonic()
        self._phase = "starting"
        self._part = ""

    def doing(self, phase: str, part: str = "") -> None:
        """Records the current phase and part; a new phase is printed."""
        self._part = part
        if phase != self._phase:
            self._phase = phase
            self._since = time.monotonic()
            self._say(self.now)

    @property
    def now(self) -> str:
        return f"{self._phase} {self._part}".strip()

    @property
    def seconds_of_phase(self) -> float:
        return time.monotonic() - self._since

    @property
    def is_over(self) -> bool:
        return self._ends is not None and time.monotonic() >= self._ends

    def run(self, work: Callable[[], None]) -> bool:
        """Runs `work` on a daemon thread; returns False if the time is over before its end."""
        thread = threading.Thread(target=work, name="env-check", daemon=True)
        thread.start()
        while thread.is_alive() and not self.is_over:
            thread.join(
                EVERY_S
                if self._ends is None
                else max(0.0, min(EVERY_S, self._ends - time.monotonic()))
            )
            if thread.is_alive():
                self._say(f"still {self.now}, for {self.seconds_of_phase:.0f} s")
        return not thread.is_alive()

    def _say(self, text: str) -> None:
        print(
            f"{self._name}: {text} ({time.monotonic() - self._began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )


def close_within(close: Callable[[], None], seconds: float) -> None:
    """Calls `close`, which may hang, on a daemon thread; returns after `seconds` at the latest."""
    thread = threading.Thread(target=close, name="env-check-close", daemon=True)
    thread.start()
    thread.join(seconds)
