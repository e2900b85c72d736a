"""The result of an evaluation: evaluation.json and its numbers, the same whatever played the episodes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from xp.atomic import write_atomically
from xp.episode.metrics import FULL_REWARD, Played
from xp.errors import ExitCode, XpError


def evaluation_result(played: Sequence[Played], pass_threshold: float) -> dict[str, Any]:
    """Mean reward with its standard error, over the episodes that have one; raises XpError where none has.

    `perfect_share` counts rewards of at least 1, `pass_share` those of at least `pass_threshold`.
    """
    rewards = [one.outcome.reward for one in played if one.outcome.reward is not None]
    if not rewards:
        raise XpError("every held-out episode is void: the environment is failing", ExitCode.UNHEALTHY)
    statuses = [one.outcome.status.value for one in played]
    return {
        "reward_mean": fmean(rewards),
        "reward_stderr": stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else None,
        "perfect_share": fmean(float(reward >= FULL_REWARD) for reward in rewards),
        "pass_share": fmean(float(reward >= pass_threshold) for reward in rewards),
        "pass_threshold": pass_threshold,
        "num_scored": len(rewards),
        "num_void": len(played) - len(rewards),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "turns_mean": fmean(one.outcome.num_turns for one in played),
    }


def write_evaluation(
    path: Path,
    models: Mapping[str, str],
    results: Mapping[str, Mapping[str, Any]],
    held_out: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write evaluation.json, whole or not at all.

    Args:
        path: of the file.
        models: name (`before`, `after`) -> what was played.
        results: name -> `evaluation_result`.
        held_out: environment -> which rule held its tasks out, and its figures.
    """
    evaluation = {"schema_version": 1, "models": dict(models), "results": results, "held_out": held_out}
    write_atomically(path, json.dumps(evaluation, indent=2) + "\n")
