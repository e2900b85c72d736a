"""Grade-school mathematics: the public GSM8K set from the Hugging Face hub, or a made one that needs no network."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from xp.envs.builtin.graders import gsm8k
from xp.errors import ExitCode, XpError
from xp.lib.data_files import rows_of_hub

DATASET: Final = "hf:openai/gsm8k:main"
INSTRUCTION: Final = 'Let\'s think step by step and output the final answer after "####".'
NUM_MADE: Final = {"train": 256, "test": 64}

Row = Mapping[str, Any]

grade: Final = gsm8k


def hub() -> Mapping[str, Sequence[Row]]:
    """The public set: 7,473 problems to train on and 1,319 to test on, from the hub or its cache on this machine.

    Raises:
        XpError: it can be had from neither.
    """
    try:
        return {split: list(map(_row, rows)) for split, rows in rows_of_hub(DATASET).items()}
    except XpError as error:
        fix = "use env=gsm8k_mini, a small generated set, or download it with a network connection"
        raise XpError(f"{error}\n{fix}", ExitCode.ENVIRONMENT) from error


def made() -> Mapping[str, Sequence[Row]]:
    """Word problems of one to two steps, the same everywhere and always."""
    return {
        split: [_made(split, number) for number in range(count)]
        for split, count in NUM_MADE.items()
    }


def _row(problem: Mapping[str, str]) -> Row:
    return {
        "prompt": f"{problem['question']} {INSTRUCTION}",
        "answer": problem["answer"].rpartition("####")[2].strip(),
    }


def _made(split: str, number: int) -> Row:
    draw = random.Random(f"{split}/{number}")
    question, answer = draw.choice(_STORIES)(draw)
    return {"prompt": f"{question} {INSTRUCTION}", "answer": str(answer)}


def _shop(draw: random.Random) -> tuple[str, int]:
    count = draw.randint(2, 9)
    price = draw.randint(2, 9)
    paid = draw.randint(81, 99)
    text = f"Ana buys {count} pens at ${price} each and pays with ${paid}. How much is her change?"
    return text, paid - count * price


def _herd(draw: random.Random) -> tuple[str, int]:
    cows = draw.randint(2, 20)
    hens = draw.randint(2, 20)
    return (
        f"A farm has {cows} cows and {hens} hens. How many legs do they have in all?",
        4 * cows + 2 * hens,
    )


def _road(draw: random.Random) -> tuple[str, int]:
    speed = draw.randint(30, 90)
    hours = draw.randint(2, 5)
    left = draw.randint(10, 60)
    text = f"A train runs {hours} hours at {speed} km/h and then has {left} km to go. How long is the way in km?"
    return text, speed * hours + left


_STORIES: Final[Sequence[Callable[[random.Random], tuple[str, int]]]] = (_shop, _herd, _road)
