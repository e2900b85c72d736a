"""A game of two messages, as an environment of graded messages and as a program; vowels of the last one score."""

import os
import sys
from pathlib import Path

from shell_agent import ask

MORE = {"role": "user", "content": "Once more."}


def score(text):
    return sum(letter in "aeiou" for letter in text.strip()) / max(len(text.strip()), 1)


class Game:
    def __init__(self, env_config, extras):
        self.number = 0

    def step(self, text):
        self.number += 1
        return {
            "observations": [MORE],
            "reward": score(text) if self.number > 1 else None,
            "done": self.number > 1,
        }


if __name__ == "__main__":
    text = Path(sys.argv[-1]).read_text()
    if sys.argv[1] == "score":
        Path(os.environ["XP_ROOT"], "logs/verifier/reward.txt").write_text(repr(score(text)))
    else:
        messages = [{"role": "user", "content": text}]
        ask([*messages, ask(messages, tools=()), MORE], tools=())
