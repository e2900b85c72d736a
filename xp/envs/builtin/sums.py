"""Sums of two numbers from 1 to 20: a first task for a pretrained model of any size."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.envs.builtin.graders import number

LARGEST: Final = 20
NUM_TEST: Final = 128


class Sums:
    """1 if the last number of the answer is the sum, else 0. No pair of the test split is trained on."""

    def rows(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Every pair once, in the same order everywhere."""
        numbers = range(1, LARGEST + 1)
        rows = [
            {
                "prompt": [{"role": "user", "content": f"What is {first} + {other}?"}],
                "answer": str(first + other),
            }
            for first in numbers
            for other in numbers
        ]
        random.Random(7).shuffle(rows)
        return {"test": rows[:NUM_TEST], "train": rows[NUM_TEST:]}

    def grade(self, answer: str, row: Mapping[str, Any]) -> float:
        return number(answer, row)
