"""Multiplication problems with a grader, the smallest verifiable task: no server, no tools, one answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.envs.builtin.graders import boxed

SYSTEM: Final = "Multiply. Give the result as \\boxed{result}."
NUM_ROWS: Final = {"train": 2000, "test": 500}
NUM_DIGITS: Final = (1, 2)


class Multiply:
    """1 for the right product in the last box, else 0."""

    def rows(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The same problems everywhere and always."""
        return {
            split: [_problem(split, number) for number in range(count)]
            for split, count in NUM_ROWS.items()
        }

    def grade(self, answer: str, row: Mapping[str, Any]) -> float:
        return boxed(answer, row)


def _problem(split: str, number: int) -> Mapping[str, Any]:
    draw = random.Random(f"{split}/{number}")
    first, other = (
        draw.randrange(10 ** (digits - 1), 10**digits)
        for digits in (draw.choice(NUM_DIGITS) for _ in "12")
    )
    prompt = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{first} * {other}"},
    ]
    return {"prompt": prompt, "answer": str(first * other)}
