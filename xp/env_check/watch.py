"""The time of a check: says on standard error what is being done, and ends the wait when the time is over."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

EVERY_S: Final = 5.0
"""Between two lines while one phase goes on."""
CLOSE_S: Final = 10.0
"""For ending sessions and servers after the time is over."""


class Watch:
    """Phase and time of one environment's check.

    Args:
        name: of the environment, before each line.
        ends: on the monotonic clock; None: no limit.
    """

    def __init__(self, name: str, ends: float | None = None) -> None:
        self._name, self._ends = name, ends
        self._began = self._since = time.monotonic()
        self._phase, self._part = "starting", ""

    def doing(self, phase: str, part: str = "") -> None:
        """A phase begins, which is said, or goes on with another part."""
        self._part = part
        if phase != self._phase:
            self._phase, self._since = phase, time.monotonic()
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
        """Do `work` on a thread that a process does not wait for; False: the time was over before its end."""
        thread = threading.Thread(target=work, name="env-check", daemon=True)
        thread.start()
        while thread.is_alive() and not self.is_over:
            thread.join(EVERY_S if self._ends is None else max(0.0, min(EVERY_S, self._ends - time.monotonic())))
            if thread.is_alive():
                self._say(f"still {self.now}, for {self.seconds_of_phase:.0f} s")
        return not thread.is_alive()

    def _say(self, text: str) -> None:
        print(f"{self._name}: {text} ({time.monotonic() - self._began:.0f} s)", file=sys.stderr, flush=True)


def close_within(close: Callable[[], None], seconds: float) -> None:
    """Close what may hang: after `seconds` it is left to the end of the process."""
    thread = threading.Thread(target=close, name="env-check-close", daemon=True)
    thread.start()
    thread.join(seconds)
