"""The ready graders: which answers count as right, and which right answers are refused before a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xp.envs.builtin.graders import choice, contains, gsm8k, number, regex
from xp.lib.load import load_object
from xp.spec.env import READY

Grader = Callable[..., float]


def score(grader: Grader, answer: str, right: Any, **arguments: Any) -> float:
    return grader(answer, {"answer": right}, **arguments)


def test_a_tolerance_is_a_largest_difference() -> None:
    assert [score(number, answer, 3.1415, tolerance=0.01) for answer in ("3.14", "3.16")] == [
        1.0,
        0.0,
    ]


def test_a_pattern_selects_what_is_compared_or_is_the_right_answer() -> None:
    answer = "Answer: 3\nAnswer: **Four**."
    assert score(regex, answer, "four", pattern=r"Answer: (.*)") == 1.0
    assert score(regex, answer, "3", pattern=r"Answer: (.*)") == 0.0
    assert score(regex, answer, "3", pattern=r"\d") == 1.0
    assert score(regex, answer, "four", pattern=r"Result: (.*)") == 0.0
    assert score(regex, answer, ":", pattern=r"Answer(:)?(x)?") == 1.0
    assert score(regex, answer, r"Answer: \d$") == 0.0
    assert score(regex, answer, r"(?m)Answer: \d$") == 1.0


def test_no_answer_is_scored_where_a_judge_does_it() -> None:
    assert load_object(READY["none"])("any", {"prompt": "Without a right answer."}) == 0.0


@pytest.mark.parametrize("name", sorted({*READY} - {"math", "none"}))
def test_a_row_without_a_right_answer_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected a text, a number, or a list of them"):
        load_object(READY[name])("", {"answer": [None]})


@pytest.mark.parametrize(
    ("grader", "right"),
    [
        (number, "abc"),
        (gsm8k, ""),
        (choice, 26),
        (regex, "("),
        (contains, " "),
    ],
)
def test_a_right_answer_that_no_answer_could_equal_is_refused(grader: Grader, right: Any) -> None:
    with pytest.raises(ValueError, match=r"answer|expression"):
        grader("", {"answer": right})
