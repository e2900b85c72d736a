"""Win rates of answers that a judge compares two by two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from xp.episode.judge import Judge


def longer(_: str, __: str, ___: Any, pairs: Sequence[Mapping[str, str]]) -> list[float]:
    """What a judge says that prefers the longer answer."""
    return [float(len(pair["first"]) > len(pair["second"])) for pair in pairs]


@pytest.mark.parametrize(
    ("answers", "rates"),
    [
        (["long", "s"], [1.0, 0.0]),
        (["long", "s", "mid"], [1.0, 0.0, 0.5]),
        (["same", "same"], [0.5, 0.5]),
        (["alone"], [0.0]),
    ],
)
def test_a_win_rate_is_over_the_other_answers(answers: list[str], rates: list[float]) -> None:
    scores, _ = Judge.__new__(Judge)._compared(longer, answers)
    assert scores == rates


def test_a_judge_that_always_prefers_the_first_decides_nothing() -> None:
    scores, notes = Judge.__new__(Judge)._compared(
        lambda _, __, ___, pairs: [1.0] * len(pairs), ["a", "b"]
    )
    assert (scores, [note["judge_order_decides"] for note in notes]) == ([0.5, 0.5], [1.0, 1.0])
