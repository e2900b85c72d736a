"""Which faults are worth another try, and after how long."""

from __future__ import annotations

import pytest

from xp.envs.base import DeadlineExceeded, ProtocolError, ResponseLost, SessionLost
from xp.envs.retry import Refused, RetryRule, retry_after_s

ONCE, AGAIN = RetryRule(3), RetryRule(3, (Refused, ResponseLost))


@pytest.mark.parametrize("fault", [ResponseLost("x"), SessionLost("x"), ProtocolError("x"), DeadlineExceeded("x")])
def test_what_may_have_executed_is_not_repeated(fault: ResponseLost) -> None:
    assert ONCE.wait_s(fault, 1, 60.0) is None


def test_a_lost_answer_is_asked_for_again_where_that_is_safe() -> None:
    assert AGAIN.wait_s(ResponseLost("x"), 1, 60.0) is not None


def test_a_backend_that_is_starting_is_waited_for_until_the_deadline() -> None:
    starting = Refused("starting", 2.0, is_starting=True)
    assert ONCE.wait_s(starting, 500, 60.0) is not None
    assert ONCE.wait_s(starting, 500, 1.0) is None


@pytest.mark.scorecard(14)
@pytest.mark.parametrize("asked", [0.0, 1.0, 60.0, 3600.0])
@pytest.mark.parametrize("dice", [0.0, 0.5, 0.999])
def test_the_wait_is_never_shorter_than_the_server_asked_for(asked: float, dice: float) -> None:
    wait = ONCE.wait_s(Refused("busy", asked), 1, 1e9, jitter=lambda: dice)
    assert wait is not None
    assert asked <= wait <= asked * 1.1 + 0.4


def test_an_outage_is_waited_out_until_the_deadline() -> None:
    rule = RetryRule(3, (Refused, ResponseLost), (ResponseLost,))
    assert rule.wait_s(ResponseLost("502"), 500, 60.0) is not None
    assert rule.wait_s(ResponseLost("502"), 500, 1.0) is None
    assert rule.wait_s(Refused("429"), 3, 60.0) is None


def test_in_an_outage_an_hours_wish_is_honoured_a_minute() -> None:
    rule, fault = RetryRule(3, (ResponseLost,), (ResponseLost,)), ResponseLost("503")
    fault.retry_after_s = 3600.0
    assert 60.0 <= (rule.wait_s(fault, 1, 600.0) or 0.0) <= 67.0


@pytest.mark.scorecard(14)
def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    assert ONCE.wait_s(Refused("busy", 60.0), 1, 59.0) is None


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
