"""Reads a verifier's reward: `reward.json`, else `reward.txt`, with Harbor's rules."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from xp.contrib.harbor.sandbox import VERIFIER_LOGS, CommandSandbox
from xp.envs.base import ToolCrashed

JSON_FILE: Final = "reward.json"
TEXT_FILE: Final = "reward.txt"
MAX_TAIL: Final = 300


def reward_of(sandbox: CommandSandbox, key: str, output: str) -> float:
    """Returns the reward.

    Args:
        sandbox: sandbox of the verifier.
        key: name of the reward, if the file has several.
        output: output of the verifier, for the message.

    Raises:
        ToolCrashed: no reward file has a finite number: the verifier failed, not the model.
    """
    text = sandbox.read(JSON_FILE)
    if text is not None:
        return _finite(_chosen(text, key), JSON_FILE)
    text = sandbox.read(TEXT_FILE)
    if text is not None:
        return _finite(text, TEXT_FILE)
    tail = " ".join(output.split())[-MAX_TAIL:]
    raise ToolCrashed(
        f"the verifier wrote no {VERIFIER_LOGS}/{TEXT_FILE} or {JSON_FILE}; its output ends: {tail!r}"
    )


def _chosen(text: str, key: str) -> Any:
    try:
        rewards = json.loads(text)
    except (ValueError, RecursionError):
        raise ToolCrashed(f"the verifier's {JSON_FILE} is no JSON: {text[:80]!r}") from None
    if not isinstance(rewards, dict) or not rewards:
        raise ToolCrashed(f"the verifier's {JSON_FILE} is no object of rewards: {text[:80]!r}")
    if key in rewards:
        return rewards[key]
    if len(rewards) > 1:
        names = ", ".join(str(name)[:40] for name in list(rewards)[:8])
        raise ToolCrashed(
            f"the verifier's {JSON_FILE} has no {key!r}, but {names}: set env.options.reward=NAME"
        )
    return next(iter(rewards.values()))


def _finite(value: Any, file: str) -> float:
    try:
        if isinstance(value, str) and file == JSON_FILE:
            raise ValueError
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ToolCrashed(
            f"the reward in the verifier's {file} is no number: {str(value)[:80]!r}"
        ) from None
    if not math.isfinite(reward):
        raise ToolCrashed(f"the reward in the verifier's {file} is {reward}")
    return reward
