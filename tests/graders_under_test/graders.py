"""Graders as users write them: the three shapes, and what goes wrong with them."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from xp.envs.builtin.graders import ready


def rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return {
        "train": [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(9)],
        "test": [{"prompt": "?"}],
    }


def held_out_rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return {
        split: [{"prompt": f"Say {n} of {split}."} for n in range(9)] for split in ("train", "test")
    }


def equals(answer: str, row: Mapping[str, Any]) -> bool:
    return answer == row["answer"]


def raises(answer: str, row: Mapping[str, Any]) -> float:
    raise KeyError(answer + row["answer"])


def forgets_to_return(answer: str, row: Mapping[str, Any]) -> None:
    answer == row["answer"]  # noqa: B015


def says_a_text(answer: str, row: Mapping[str, Any]) -> str:
    del answer, row
    return "1"


def hangs(answer: str, row: Mapping[str, Any]) -> float:
    del answer, row
    time.sleep(60)
    return 0.0


def sees(answer: str, row: Mapping[str, Any]) -> float:
    """How many of the variables that the answer names there are."""
    del row
    return float(sum(name in os.environ for name in answer.split()))


def ends(answer: str, row: Mapping[str, Any]) -> float:
    del answer, row
    os._exit(3)


def rows_of_a_set() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return {
        "train": [{"prompt": word, "answer": random.choice("ab")} for word in set("abcdefghij")]
    }


def unsendable_rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    return {"train": [{"prompt": "a", "check": lambda text: text}]}


TOGETHER = 9
_together = multiprocessing.Barrier(TOGETHER)


def meets(answer: str, row: Mapping[str, Any]) -> float:
    """Slow, not busy: 1 when so many answers wait for it at the same time."""
    del answer, row
    _together.wait(timeout=240)
    return 1.0


_turn = multiprocessing.Condition()
_num_answers = multiprocessing.Value("i", 0)


def waits_for_others(answer: str, row: Mapping[str, Any]) -> float:
    """The first answer is graded when four others have been."""
    del answer, row
    with _turn:
        _num_answers.value += 1
        _turn.notify_all()
        is_first = _num_answers.value == 1
        if is_first and not _turn.wait_for(lambda: _num_answers.value > 4, timeout=240):
            raise TimeoutError("no other episode was played meanwhile")
    return 1.0


class Higher:
    """In the manner of SkyRL-Gym's BaseTextEnv: guess the number, with a hint after each guess."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config
        assert "prompt" not in extras
        self._secret = int(extras["answer"])

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [{"role": "system", "content": "Guess."}, *prompt], {}

    def step(self, action: str) -> dict[str, Any]:
        guess = int(action)
        is_right = guess == self._secret
        hint = "higher" if guess < self._secret else "lower"
        observations = [] if is_right else [{"role": "user", "content": hint}]
        return {
            "observations": observations,
            "reward": float(is_right),
            "done": is_right,
            "metadata": {},
        }


class Rewriter:
    """Rewrites the model's message, as SkyRL's environments may; its reward is the limit of turns."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        self._rewritten = env_config["rewritten"]
        self._max_turns = extras["max_turns"]

    def step(self, _: str) -> dict[str, Any]:
        output = {"observations": [], "reward": self._max_turns, "done": True, "metadata": {}}
        return output | {"postprocessed_action": self._rewritten}


def skyrl_rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """A row as SkyRL's examples write it."""
    spec = {"method": "rule", "ground_truth": "18"}
    answers = {"env_class": "gsm8k", "reward_spec": spec, "reward_model": spec}
    return {"train": [{"prompt": [{"role": "user", "content": "3 * 6?"}], **answers}]}


def with_metrics(answer: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """As verl's `compute_score` may: a score, a truth value, a text, and a number that is not finite."""
    return {
        "score": 0.5,
        "acc": answer == row["answer"],
        "pred": answer,
        "ratio": float("nan"),
    }


def pair(answer: str, row: Mapping[str, Any]) -> tuple[float, Mapping[str, float]]:
    del row
    return 0.5, {"length": len(answer)}


def says_nothing_by_a_mapping(answer: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    del answer, row
    return {"acc": 1.0}


def numpy_scalar(answer: str, row: Mapping[str, Any]) -> Any:
    import numpy as np

    del answer, row
    return np.float32(0.25)


async def later(answer: str, row: Mapping[str, Any]) -> float:
    import asyncio

    await asyncio.sleep(0.01)
    return float(answer == row["answer"])


async def never(answer: str, row: Mapping[str, Any]) -> float:
    import asyncio

    del answer, row
    await asyncio.Event().wait()
    return 0.0


def scaled(answer: str, row: Mapping[str, Any], *, scale: float) -> float:
    return scale * (answer == row["answer"])


class Scaled:
    def __init__(self, scale: float) -> None:
        self._scale = scale

    async def grade(self, answer: str, row: Mapping[str, Any]) -> float:
        return self._scale * (answer == row["answer"])


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> dict[str, Any]:
    """verl's form."""
    return {
        "score": float(solution_str == ground_truth),
        "known": data_source == "sums" and extra_info is not None,
    }


def short_score(solution_str: str, ground_truth: str) -> float:
    """As verl's own functions of `verl.utils.reward_score` are."""
    return float(ground_truth in solution_str)


async def trl_reward(
    prompts: list[Any], completions: list[Any], answer: list[str], **kwargs: Any
) -> list[float | None]:
    """TRL's form: None where it does not apply."""
    del kwargs
    texts = [one if isinstance(one, str) else one[-1]["content"] for one in completions]
    return [
        None if not text else float(text == right)
        for text, right, _ in zip(texts, answer, prompts, strict=True)
    ]


def trl_bare_number(completions: list[Any], **kwargs: Any) -> float:
    del completions, kwargs
    return 1.0


@ready(limit_s=5.0)
def sleeps(answer: str, right: Any) -> bool:
    time.sleep(600.0 if answer == "asleep" else 0.0)
    return answer == right


def thinks(answer: str, row: Mapping[str, Any]) -> float:
    del row
    return float("<think>" in answer)


def thinks_for_verl(solution_str: str) -> float:
    return float("<think>" in solution_str)


class ThinksInSteps:
    """The shape of SkyRL-Gym's environments."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config, extras

    def step(self, text: str) -> Mapping[str, Any]:
        return {"observations": [], "reward": float("<think>" in text), "done": True}
