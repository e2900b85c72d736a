"""The environments that xp grades itself."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.fake_session import RULES
from tests.support.sections import replace
from xp.envs.builtin import gsm8k
from xp.envs.builtin.multiply import Multiply
from xp.envs.builtin.sums import Sums
from xp.envs.config import load_provider
from xp.errors import XpError


@pytest.mark.parametrize(
    ("grade", "right", "rewards"),
    [
        (
            Multiply().grade,
            "42",
            {
                r"It is \boxed{42}.": 1,
                r"\boxed{41}, no: \boxed{ 42 }": 1,
                "42": 0,
                r"\boxed{420}": 0,
            },
        ),
        (
            gsm8k.grade,
            "18",
            {"6*3=18\n#### 18": 1, "#### 7\nNo. #### 18.": 1, r"\boxed{18}": 1, r"\boxed{\$18}": 1},
        ),
        (
            gsm8k.grade,
            "18",
            {r"#### \$18": 1, "#### **18**": 1, "#### $1,018.00": 0, "18": 0, "####": 0},
        ),
        (gsm8k.grade, "1,018", {"#### $1,018.0": 1}),
        (
            Sums().grade,
            "19",
            {
                "12 + 7 = 19": 1,
                "19": 1,
                "It is 19.": 1,
                "19 or 20": 0,
                "-19": 0,
                "nineteen": 0,
                "": 0,
            },
        ),
    ],
)
def test_an_answer_has_its_reward(grade: Any, right: str, rewards: dict[str, int]) -> None:
    assert {answer: grade(answer, {"answer": right}) for answer in rewards} == rewards


def test_an_interpreter_without_a_graders_package_says_so_before_the_first_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.delitem(sys.modules, "xp.envs.builtin.math_verified", raising=False)
    rule = replace(
        RULES,
        provider="local",
        grader="xp.envs.builtin.math_verified:math",
        rows="xp.envs.builtin.gsm8k:made",
    )
    with pytest.raises(
        XpError, match=f"math_verified:math cannot be loaded by {sys.executable}.*math_verify"
    ):
        load_provider(rule, {})


def test_the_made_set_is_reproducible_and_hides_its_answers() -> None:
    made = gsm8k.made()
    assert made == gsm8k.made()
    assert {split: len(rows) for split, rows in made.items()} == gsm8k.NUM_MADE
    assert all(
        row["answer"] not in str(row["prompt"]).replace(".", " ").split() for row in made["test"]
    )


def test_no_sum_of_the_test_split_is_trained_on() -> None:
    rows = Sums().rows()
    asked = {split: [row["prompt"][0]["content"] for row in rows[split]] for split in rows}
    assert len({*asked["test"], *asked["train"]}) == 128 + 272
