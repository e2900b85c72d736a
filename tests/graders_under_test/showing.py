"""Graders that show boards of shapes: one after another, several at once, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xp.envs.builtin.shapes_mini import drawn, puzzle


def rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Prompts of 0, 1 and 2 pictures, in turn."""
    return {
        split: [
            {
                "prompt": f"{number}: how many?",
                "images": [
                    drawn(puzzle(f"{split}/{number}/{one}")[0]) for one in range(number % 3)
                ],
                "answer": str(number % 4),
            }
            for number in range(size)
        ]
        for split, size in (("train", 24), ("test", 4))
    }


class FirstBoard:
    """Adds a picture beside the rows to each prompt; any answer is right."""

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config, extras

    def init(self, prompt: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Any]:
        text = {"type": "text", "text": prompt[-1]["content"]}
        content = [{"type": "image", "image": "shown/0.png"}, text]
        return [*prompt[:-1], {"role": "user", "content": content}], {}

    def step(self, text: str) -> Mapping[str, Any]:
        del text
        return {"observations": [], "reward": 1.0, "done": True}


class TwoBoards:
    """Two turns: whatever the first answer is, another board follows; the reward is that of the second."""

    rows = staticmethod(rows)

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config
        self._answer = extras["answer"]
        self._turn = 0

    def step(self, text: str) -> Mapping[str, Any]:
        self._turn += 1
        if self._turn == 2:
            return {"observations": [], "reward": float(len(text) % 3), "done": True}
        board = drawn(puzzle(f"second/{self._answer}")[0])
        content = [{"type": "text", "text": "And now?"}, {"type": "image", "image": board}]
        return {
            "observations": [{"role": "user", "content": content}],
            "reward": 0.0,
            "done": False,
        }
