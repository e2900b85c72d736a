"""Which faults are worth another try, and after how long."""

from __future__ import annotations

import pytest

from xp.envs.base import DeadlineExceeded, EnvFault, ProtocolError, ResponseLost, SessionLost
from xp.envs.retry import Refused, RetryRule, retry_after_s

ONCE, AGAIN = RetryRule(3), RetryRule(3, (Refused, ResponseLost))


OUTAGE = RetryRule(3, (Refused, ResponseLost), (ResponseLost,))


def lost(retry_after_s: float | None = None) -> ResponseLost:
    fault = ResponseLost("503")
    fault.retry_after_s = retry_after_s
    return fault


@pytest.mark.scorecard(14)
@pytest.mark.parametrize(
    ("rule", "fault", "attempt", "left_s", "wait_s"),
    [
        # What may have been executed is repeated only where that is safe, and as often as the rule says.
        *((ONCE, fault("x"), 1, 60.0, None) for fault in (ResponseLost, SessionLost, ProtocolError, DeadlineExceeded)),
        *((AGAIN, lost(), attempt, 60.0, wait_s) for attempt, wait_s in ((1, 0.25), (2, 0.5), (3, None), (4, None))),
        # A wait that would reach the deadline is not begun.
        (ONCE, Refused("x"), 1, 0.26, 0.25),
        (ONCE, Refused("x"), 1, 0.25, None),
        (ONCE, Refused("busy", 60.0), 1, 60.25, None),
        # It is never shorter than the server asked for.
        (ONCE, Refused("busy", 0.0), 1, 1e9, 0.05),
        (ONCE, Refused("busy", 1.0), 1, 1e9, 1.15),
        (ONCE, Refused("busy", 60.0), 1, 1e9, 60.25),
        (ONCE, Refused("busy", 3600.0), 1, 1e9, 3600.25),
        # A backend that is starting, and an outage, are waited out; in an outage an hour is a minute.
        (ONCE, Refused("starting", 2.0, is_starting=True), 500, 60.0, 2.25),
        (ONCE, Refused("starting", 2.0, is_starting=True), 500, 1.0, None),
        (OUTAGE, lost(), 500, 60.0, 8.0),
        (OUTAGE, lost(), 500, 1.0, None),
        (OUTAGE, Refused("429"), 3, 60.0, None),
        (OUTAGE, lost(3600.0), 1, 600.0, 60.25),
        (OUTAGE, Refused("429", 3600.0), 1, 1e9, 3600.25),
    ],
)
def test_which_faults_are_retried_after_which_wait(
    rule: RetryRule, fault: EnvFault, attempt: int, left_s: float, wait_s: float | None
) -> None:
    assert rule.wait_s(fault, attempt, left_s, jitter=lambda: 0.5) == (
        None if wait_s is None else pytest.approx(wait_s)
    )


def test_the_wait_grows_and_is_spread() -> None:
    def waits(dice: float) -> list[float]:
        rule = RetryRule(99)
        return [rule.wait_s(Refused("x"), attempt, 1e9, lambda: dice) or 0.0 for attempt in range(1, 9)]

    assert waits(0.5) == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert all(low < high for low, high in zip(waits(0.0), waits(0.9), strict=True))


@pytest.mark.scorecard(14)
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("60", 60.0),
        ("1.5", 1.5),
        ("Sat, 21 Nov 2026 06:00:30 GMT", 30.0),
        ("Sat, 21 Nov 2026 05:00:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("9" * 400, None),
        ("²", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, now=1795240800.0) == seconds
