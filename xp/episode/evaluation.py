"""The result of an evaluation: evaluation.json and its numbers, the same for every backend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from xp.episode.clusters import clustered_stderr
from xp.episode.metrics import FULL_REWARD, EpisodeFacts, void_reasons
from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically


def evaluation_result(played: Sequence[EpisodeFacts], pass_threshold: float) -> dict[str, Any]:
    """Mean reward with its standard error, over the scored episodes; raises XpError if there are none.

    `perfect_share` counts rewards of at least 1, `pass_share` those of at least `pass_threshold`, `env_pass_share` the
    same before the user's reward functions and the group's rewards. The standard error is clustered by task. `tasks`
    has each task's rewards in the order of play, None for a void episode.
    """
    tasks: dict[str, list[float | None]] = {}
    for one in played:
        tasks.setdefault(one.task_id, []).append(one.outcome.reward)
    outcomes = [one.outcome for one in played]
    scored = [
        (one.reward, one.ungrouped if one.unshaped is None else one.unshaped)
        for one in outcomes
        if one.reward is not None
    ]
    if not scored:
        reasons = void_reasons(one.void_reason for one in outcomes)
        raise XpError(f"every held-out episode is void: the environment is failing ({reasons})", ExitCode.UNHEALTHY)
    rewards = [reward for reward, _ in scored]
    unshaped = [reward if env_reward is None else env_reward for reward, env_reward in scored]
    statuses = [one.outcome.status.value for one in played]
    return {
        "reward_mean": fmean(rewards),
        "reward_stderr": clustered_stderr([[one for one in task if one is not None] for task in tasks.values()]),
        "perfect_share": fmean(float(reward >= FULL_REWARD) for reward in rewards),
        "pass_share": fmean(float(reward >= pass_threshold) for reward in rewards),
        "env_pass_share": fmean(float(reward >= pass_threshold) for reward in unshaped),
        "pass_threshold": pass_threshold,
        "num_scored": len(rewards),
        "num_void": len(played) - len(rewards),
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "turns_mean": fmean(one.outcome.num_turns for one in played),
        "num_tasks": len(tasks),
        "tasks": tasks,
    }


def write_evaluation(
    path: Path,
    models: Mapping[str, str],
    results: Mapping[str, Mapping[str, Any]],
    held_out: Mapping[str, Mapping[str, Any]],
    task_hashes: Mapping[str, str],
    scoring: Mapping[str, Mapping[str, Any]],
) -> None:
    """Writes evaluation.json atomically.

    Args:
        path: path of the file.
        models: name (`before`, `after`) -> model.
        results: name -> `evaluation_result`.
        held_out: environment -> rule of its held-out tasks, with numbers.
        task_hashes: task -> digest of its content.
        scoring: environment -> what decides its rewards (xp.tasks.request).
    """
    evaluation = {
        "schema_version": 1,
        "models": dict(models),
        "results": results,
        "held_out": held_out,
        "task_hashes": dict(task_hashes),
        "scoring": dict(scoring),
    }
    write_atomically(path, json.dumps(evaluation, indent=2) + "\n")
