"""Geometry3K with a tool that checks an answer before the final one, as SkyRL's and Slime's examples have it.

The tool is part of the text: those examples name it in the prompt, and read the call out of the model's message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp.envs.builtin.graders import final_part
from xp.envs.builtin.math_verified import math

TOOL: Final = "calc_score"
CALL: Final = (
    f'<tool_call>{{"name": "{TOOL}", "arguments": {{"answer": "YOUR ANSWER"}}}}</tool_call>'
)
INSTRUCTIONS: Final = (
    "Solve the problem step by step. You can check an answer with a tool, by writing:\n"
    f"{CALL}\n"
    "If the answer is wrong, try another way. Write the final answer as Answer: \\boxed{YOUR ANSWER}\n\n"
)
HOW: Final = f"To check an answer, write {CALL}"
LAST: Final = " This is the last turn: call no tool, and write Answer: \\boxed{YOUR ANSWER}"
_CALL: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class CheckedGeometry:
    """A problem with a few turns: 1 for a right answer, in a call of the tool or without one; else 0.

    A right answer ends the conversation, and so do a message without a call and the last turn.

    Args:
        env_config: none are read.
        extras: the row, with `answer`, and `max_turns`.
    """

    def __init__(self, env_config: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        del env_config
        self._row = {"answer": str(extras["answer"])}
        self._num_left = int(extras["max_turns"])
        """Turns that the model still has."""

    def init(
        self, prompt: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
        """The prompt with the tool's description before the user's first message."""
        messages = list(prompt)
        first = next(at for at, message in enumerate(messages) if message["role"] == "user")
        content = INSTRUCTIONS + messages[first]["content"]
        messages[first] = {**messages[first], "content": content}
        return messages, {}

    def step(self, text: str) -> Mapping[str, Any]:
        """The tool's answer, or the end of the conversation with its reward."""
        self._num_left -= 1
        call = _last_call(text)
        if call is None:
            if final_part(text, only_box=True) is None:
                text = text.strip().rpartition("\n")[2]
            return _end(self._score(text))
        name, answer = call
        score = 0.0
        if name == TOOL and answer:
            score = self._score(answer)
        if score == 1.0 or not self._num_left:
            return _end(score)
        if name != TOOL:
            reply = f"There is no tool {name!r}. {HOW}"
        elif not answer:
            reply = f"The call has no answer. {HOW}"
        else:
            reply = f"{TOOL}: {score}. The answer {answer!r} is wrong. Try another way."
        if self._num_left == 1:
            reply += LAST
        return {
            "observations": [{"role": "user", "content": reply}],
            "reward": 0.0,
            "done": False,
        }

    def _score(self, answer: str) -> float:
        """1 for the right answer, in a box or alone."""
        if final_part(answer, only_box=True) is None:
            answer = f"\\boxed{{{answer}}}"
        return math(answer, self._row)


def _last_call(text: str) -> tuple[str, str] | None:
    """Name and answer of the last call of a message. None means that it has none, or one that is no JSON."""
    calls = _CALL.findall(text)
    if not calls:
        return None
    try:
        call = json.loads(calls[-1])
        function = call.get("function") or call
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        answer = arguments.get("answer")
        name = function.get("name")
    except (ValueError, AttributeError):
        return None
    if not name:
        return None
    return str(name), "" if answer is None else str(answer).strip()


def _end(reward: float) -> Mapping[str, Any]:
    return {"observations": [], "reward": reward, "done": True}
