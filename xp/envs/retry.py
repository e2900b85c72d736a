"""Retry of requests: the fault's type, never its text, decides whether and after how long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Final, TypeVar

from xp.envs.base import EnvFault, EnvUnavailable

T = TypeVar("T")

BASE_S: Final = 0.25
CAP_S: Final = 8.0
MOST_ASKED_S: Final = 60.0
"""In an outage a longer Retry-After is not waited for: a gateway's page asks for an hour whatever happens."""


class Refused(EnvUnavailable):
    """The request provably did not execute: connection refused, 429, or a backend that says that it is starting.

    Args:
        message: what was refused.
        retry_after_s: the server's own wish; the wait is never shorter.
        is_starting: the backend is coming up, so the deadline bounds the tries and `max_attempts` does not.
    """

    def __init__(self, message: str, retry_after_s: float | None = None, is_starting: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_starting = is_starting


class Unreachable(Refused):
    """No connection: the server is restarting, or is not there."""


@dataclass(frozen=True)
class RetryRule:
    """Faults that are retried.

    tenacity would do, but its bookkeeping costs more CPU per call than the request's own overhead may (1 ms).
    """

    max_attempts: int
    retried: tuple[type[Exception], ...] = (Refused,)
    waited_out: tuple[type[EnvFault], ...] = ()
    """Faults among them that are retried until the deadline, without a limit on the number of tries."""
    base_s: float = BASE_S
    """Pause before the second try; doubled with each further one."""

    def wait_s(
        self, fault: EnvFault, attempt: int, left_s: float, jitter: Callable[[], float] = random.random
    ) -> float | None:
        """Seconds to wait before the next try, or None: give up.

        Args:
            fault: what the last try raised.
            attempt: tries so far, from 1.
            left_s: seconds until the deadline; a wait beyond it is not begun.
        """
        if not isinstance(fault, self.retried):
            return None
        is_outage = isinstance(fault, self.waited_out)
        if attempt >= self.max_attempts and not (is_outage or (isinstance(fault, Refused) and fault.is_starting)):
            return None
        backoff, asked = backoff_s(attempt, jitter, self.base_s), fault.retry_after_s
        if asked is not None and is_outage:
            asked = min(asked, MOST_ASKED_S)
        wait = backoff if asked is None else asked + min(backoff, 0.1 * asked + 0.05)
        return wait if wait < left_s else None

    def pause_s(self, fault: Exception, attempt: int) -> float | None:
        """Seconds to wait where neither a deadline nor a server's wish counts; arguments and result of `wait_s`."""
        again = isinstance(fault, self.retried) and attempt < self.max_attempts
        return backoff_s(attempt, base_s=self.base_s) if again else None


def retried(act: Callable[[], T], rule: RetryRule) -> T:
    """Result of an action that is tried as often as the rule says; raises what the last try raised."""
    for attempt in count(1):
        try:
            return act()
        except rule.retried as fault:
            pause = rule.pause_s(fault, attempt)
            if pause is None:
                raise
        time.sleep(pause)
    raise AssertionError


def backoff_s(attempt: int, jitter: Callable[[], float] = random.random, base_s: float = BASE_S) -> float:
    """The pause after the given number of tries, from 1: twice as long each time, spread by half of it."""
    return min(CAP_S, base_s * 2.0 ** min(attempt - 1, 16)) * (0.5 + jitter())


def retry_after_s(header: str | None, now: float) -> float | None:
    """The seconds that a Retry-After header asks for (number or HTTP date), None when it is absent or unreadable.

    Args:
        now: seconds since the epoch.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 12:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None
