"""Retries of requests: the fault's type, never its text, decides whether to retry and how long to wait."""

from __future__ import annotations

import random
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

from xp.envs.base import EnvFault, EnvUnavailable

MAX_ATTEMPTS: Final = 5
"""Attempts of a request that certainly did not execute (status 429), or is safe to repeat; also to reach a server that
has never answered."""
BASE_S: Final = 0.25
CAP_S: Final = 8.0
MAX_RETRY_AFTER_S: Final = 60.0
"""Largest Retry-After, in seconds, that is respected in an outage; gateways often send an hour."""


class Refused(EnvUnavailable):
    """The request certainly did not execute: connection refused, 429, or a backend that is starting.

    Args:
        message: text of the fault.
        retry_after_s: the server's Retry-After, in seconds; the wait is never shorter.
        is_starting: whether the backend is starting; then the deadline limits the attempts, not `MAX_ATTEMPTS`.
    """

    def __init__(
        self, message: str, retry_after_s: float | None = None, is_starting: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.is_starting = is_starting


class AtCapacity(Refused):
    """The server holds no more sessions.

    Args:
        message: text of the fault.
        max_sessions: the number of sessions that it holds, as its answer has it.
    """

    def __init__(self, message: str, max_sessions: object) -> None:
        super().__init__(message, is_starting=True)
        self.max_sessions = max_sessions


class Unreachable(Refused):
    """No connection: the server is restarting, or does not exist."""


@dataclass(frozen=True)
class RetryRule:
    """Faults that are retried.

    tenacity is not used, since it costs more CPU per call than the budget of a request (1 ms).
    """

    retried: tuple[type[EnvFault], ...] = (Refused,)
    waited_out: tuple[type[EnvFault], ...] = ()
    """Faults that are retried until the deadline, with any number of attempts."""

    def wait_s(self, fault: EnvFault, attempt: int, left_s: float) -> float | None:
        """Seconds to wait before the next attempt. None means no further attempt.

        Args:
            fault: exception of the last attempt.
            attempt: number of attempts so far, from 1.
            left_s: seconds until the deadline, which limits the wait.
        """
        if not isinstance(fault, self.retried):
            return None
        if attempt >= MAX_ATTEMPTS and not self.should_continue(fault):
            return None
        wait = backoff_s(attempt)
        requested_s = fault.retry_after_s
        if requested_s is not None:
            if isinstance(fault, self.waited_out):
                requested_s = min(requested_s, MAX_RETRY_AFTER_S)
            wait = requested_s + min(wait, 0.1 * requested_s + 0.05)
        return wait if wait < left_s else None

    def should_continue(self, fault: EnvFault) -> bool:
        """Returns whether only the deadline limits the attempts."""
        return isinstance(fault, self.waited_out) or (
            isinstance(fault, Refused) and fault.is_starting
        )


def backoff_s(attempt: int) -> float:
    """Seconds to wait after the given number of attempts, from 1: doubled each time, with jitter of up to half."""
    return min(CAP_S, BASE_S * 2.0 ** min(attempt - 1, 16)) * (0.5 + random.random())


def retry_after_s(header: str | None, now: float) -> float | None:
    """Seconds in a Retry-After header (number or HTTP date); None if it is absent or unreadable.

    Args:
        now: current time, in seconds since the epoch.
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
