"""The ready graders: which answers count as right, and which right answers are refused before a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xp.builtin.graders import boxed, choice, contains, exact, gsm8k, number, regex
from xp.lib.load import load_object
from xp.spec.env import READY

Grader = Callable[..., float]


def score(grader: Grader, answer: str, right: Any, **arguments: Any) -> float:
    return grader(answer, {"answer": right}, **arguments)


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        ("Paris", "paris", 1.0),
        (' **"Paris"**.\n', "Paris", 1.0),
        ("New\n  York", "New York", 1.0),
        ("It is Paris", "Paris", 0.0),
        ("72.0", "72", 0.0),
        ("42", 42, 1.0),
        (".", ".", 1.0),
        ("four", ["4", "four"], 1.0),
        ("caf\u0065\u0301", "caf\u00e9", 1.0),
    ],
)
def test_exact(answer: str, right: Any, reward: float) -> None:
    assert score(exact, answer, right) == reward


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        ("it is 4.", "4", 1.0),
        ("It is PARIS!", "Paris", 1.0),
        ("the\n big  dog", "the big dog", 1.0),
        ("C++ is it", "C++", 1.0),
        ("42", "4", 0.0),
        ("4.5", "4", 0.0),
        ("1,800", "800", 0.0),
        ("x = -4", "4", 0.0),
        ("-4", "4", 0.0),
        ("4", "-4", 0.0),
        ("GPT-4", "4", 1.0),
        ("Parisian", "Paris", 0.0),
        ("it is x.y", "x.y", 1.0),
        ("it is xay", "x.y", 0.0),
    ],
)
def test_contains(answer: str, right: Any, reward: float) -> None:
    assert score(contains, answer, right) == reward


NUMBERS = [
    ("2+40=42\n#### 42\n" + "The reasoning above has 3 steps. " * 8, "42", 1.0),
    ("#### 72.0", "72", 1.0),
    ("#### 1,800", "1800", 1.0),
    ("#### $1,800.", "1800", 1.0),
    ("#### -$5", "-5", 1.0),
    (r"#### \$1{,}800", 1800, 1.0),
    ("#### **42**", "42", 1.0),
    ("####42<|im_end|>", "42", 1.0),
    ("####\n42", "42", 1.0),
    ("#### 42%", "42", 1.0),
    ("#### 3/4", "0.75", 1.0),
    ("#### 1.5e3 m", "1500", 1.0),
    ("#### 42 apples and 3 pears", "42", 1.0),
    ("#### 42 apples\n#### 43", "42", 0.0),
    (r"\boxed{42}, which is 2 more than 40", "42", 1.0),
    (r"\boxed{\frac{3}{4}}", "0.75", 1.0),
    (r"\boxed{41} No: \boxed{\text{42}}", "42", 1.0),
    ("#### 5, I mean \\boxed{6}", "6", 1.0),
    ("#### none", "42", 0.0),
    ("#### 42", "So 2 + 40 = 42\n#### 42", 1.0),
    ("#### 1/0", "1", 0.0),
]


@pytest.mark.parametrize("grader", [number, gsm8k], ids=["number", "gsm8k"])
@pytest.mark.parametrize(("answer", "right", "reward"), NUMBERS)
def test_numbers_after_a_mark(grader: Grader, answer: str, right: Any, reward: float) -> None:
    assert score(grader, answer, right) == reward


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        ("The answer is 42", "42", 1.0),
        ("First 7, then 42.", "42", 1.0),
        ("42, not 7", "42", 0.0),
        ("50 - 8 = 42", "42", 1.0),
        ("10-5", "5", 1.0),
        ("x=-3.5", "-7/2", 1.0),
        ("\N{MINUS SIGN}7", "-7", 1.0),
        ("H2O", "2", 0.0),
        ("the 3rd", "3", 1.0),
        ("1, 2, 3", "3", 1.0),
        ("no number", "3", 0.0),
        ("9" * 6000, "9" * 6000, 1.0),
        ("1e999", "1", 0.0),
    ],
)
def test_without_a_mark_number_takes_the_last_one_and_gsm8k_none(answer: str, right: Any, reward: float) -> None:
    assert score(number, answer, right) == reward
    assert score(gsm8k, answer, right) == 0.0


def test_a_tolerance_is_a_largest_difference() -> None:
    assert [score(number, answer, 3.1415, tolerance=0.01) for answer in ("3.14", "3.16")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        (r"It is \boxed{\dfrac{1}{2}}.", r"\frac{1}{2}", 1.0),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac12}", r"\frac{1}{2}", 1.0),
        (r"\boxed{\frac{3}{4}}", r"\dfrac 34", 1.0),
        (r"\boxed{\frac13}", r"\frac{1}{2}", 0.0),
        (r"\boxed{1,800}", "1800", 1.0),
        (r"\boxed{ 42 \text{ }}", r"The whole solution. So \boxed{42}", 1.0),
        (r"\boxed{\text{Paris}}", "paris", 1.0),
        (r"\boxed{x^{2} + \left(y\right)}", "$x^{2}+(y)$", 1.0),
        (r"\boxed{\{1, 2\}}", r"\{1,2\}", 1.0),
        (r"\boxed{90^\circ}", "90", 1.0),
        (r"\boxed{1} and \boxed{2}", "2", 1.0),
        (r"\boxed{1} and \boxed{2}", "1", 0.0),
        (r"\boxed{1,2}", "12", 0.0),
        (r"\boxed{42", "42", 0.0),
        ("42", "42", 0.0),
    ],
)
def test_boxed(answer: str, right: Any, reward: float) -> None:
    assert score(boxed, answer, right) == reward


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        *[(text, "B", 1.0) for text in ("B", "b", "(B)", "B.", "B) Paris", "**B**", "B: Paris", r"\boxed{\text{B}}")],
        *[(text, "(b)", 1.0) for text in ("Answer: B", "The answer is (B).", "Answer:\nB", "The correct option is B")],
        ("Let me think.\nB", "B", 1.0),
        ("#### B", "B", 1.0),
        ("The answer is A. No, the answer is B because A is wrong.", "B", 1.0),
        ("B", 1, 1.0),
        ("A dog is here", "A", 0.0),
        ("The answer is a cat", "A", 0.0),
        ("None", "N", 0.0),
        ("", "A", 0.0),
    ],
)
def test_choice(answer: str, right: Any, reward: float) -> None:
    assert score(choice, answer, right) == reward


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
@pytest.mark.parametrize("right", [None, [], [None], {"value": 1}])
def test_a_row_without_a_right_answer_is_refused(name: str, right: Any) -> None:
    with pytest.raises(ValueError, match=r"its answer is .*; expected a text, a number, or a list of them"):
        load_object(READY[name])("", {"answer": right})


@pytest.mark.parametrize(
    ("grader", "right"),
    [
        (number, "abc"),
        (gsm8k, ""),
        (choice, "Paris"),
        (choice, 26),
        (choice, "3"),
        (regex, "("),
        (contains, " "),
    ],
)
def test_a_right_answer_that_no_answer_could_equal_is_refused(grader: Grader, right: Any) -> None:
    with pytest.raises(ValueError, match=r"answer|expression"):
        grader("", {"answer": right})
