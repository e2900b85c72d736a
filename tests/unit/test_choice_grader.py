"""Letters of a choice: formulas before the mark, denials, two letters, headings, and marks of other languages."""

from __future__ import annotations

import pytest

from xp.envs.builtin.graders import choice


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (r"So \boxed{x^2+1}." + "\n\n**Answer: D**", 1),
        (r"\boxed{B}" + "\nAnswer: D", 1),
        (r"Answer: B, but then \boxed{D}", 1),
        ("The answer is not (A), but rather (D).", 1),
        ("The answer is D, not A.", 1),
        ("The answer is D or A is", 0),
        ("The answer is D and B.", 0),
        ("The answer is D and I'm sure.", 1),
        ("The answer is D or, as I said, Paris.", 1),
        (r"\boxed{A or D}", 0),
        (r"\boxed{D, A}", 0),
        ("#### A\nRome is no capital of France.\n\nAnswer: D", 1),
        ("#### D\nParis.\n\n#### A\nRome.\n\nThe answer is D", 1),
        ("Answer: D\n\n#### Analysis\nIt is long.", 1),
    ],
)
def test_the_letter_that_is_given_counts(answer: str, reward: float) -> None:
    assert choice(answer, {"answer": "D"}) == reward


@pytest.mark.parametrize(
    ("answer", "mark"),
    [
        ("所以答案是D。", "答案是"),
        ("Antwort: **D**", "Antwort"),
        ("정답은 D입니다.", "정답은"),
    ],
)
def test_a_mark_of_another_language_is_an_option(answer: str, mark: str) -> None:
    text = f"(A) nein\n{answer}\nDanke."
    assert choice(text, {"answer": "D"}) == 0
    assert choice(text, {"answer": "D"}, marks=[mark]) == 1


def test_an_ambiguous_right_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a letter"):
        choice("A", {"answer": "A or B"})
