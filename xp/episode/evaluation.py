"""The record of an evaluation, `eval.json`: the same of a run's stages and of `xp eval`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from xp.envs.graded import TIMED_OUT
from xp.envs.judges import total_usage
from xp.episode.clusters import clustered_stderr
from xp.episode.metrics import EpisodeFacts, void_reasons
from xp.lib.grouping import grouped

RECORD: Final = "eval.json"
SCHEMA_VERSION: Final = 2


def evaluation_record(
    about: Mapping[str, Any],
    played: Sequence[EpisodeFacts],
    hashes: Mapping[str, str],
    scoring: Mapping[str, Mapping[str, Any]],
    num_asked: int,
    stopped: str | None = None,
) -> dict[str, Any]:
    """The record of a model's evaluation.

    Args:
        about: `id`, `env`, `model`, `run`, `task_set` and `playing` of the evaluation.
        played: its episodes, those of a task in the order of samples.
        hashes: task -> digest of its content.
        scoring: environment -> what decides its rewards (xp.tasks.request).
        num_asked: number of all episodes.
        stopped: reason of an early stop. None means that all episodes were played.
    """
    threshold = about["playing"]["pass_threshold"]
    tasks = rewards_of(played)
    envs = {
        name: figures([one for one in played if one.env == name], threshold) for name in scoring
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        "status": "finished" if len(played) == num_asked else "stopped",
        "stopped": stopped if len(played) < num_asked else None,
        "num_asked": num_asked,
        "num_played": len(played),
        "started": min((one.started_at for one in played), default=None),
        "ended": max((one.started_at + one.elapsed_s for one in played), default=None),
        "summary": next(iter(envs.values())) if len(envs) == 1 else figures(played, threshold),
        "environments": envs,
        "usage": {
            "prompt_tokens": sum(one.num_read for one in played),
            "completion_tokens": sum(one.num_tokens for one in played),
            "cost_usd": None,
            "judges": total_usage([one.outcome.judges for one in played]),
        },
        "scoring": dict(scoring),
        "tasks": {
            task: {"hash": hashes[task], "rewards": rewards} for task, rewards in tasks.items()
        },
    }


def rewards_of(played: Sequence[EpisodeFacts]) -> dict[str, list[float | None]]:
    """Task -> the rewards of its episodes, in the order of play. None means void."""
    return grouped((one.task_id, one.outcome.reward) for one in played)


def figures(played: Sequence[EpisodeFacts], pass_threshold: float) -> dict[str, Any]:
    """Means over the scored episodes, with standard errors clustered by task, and how all episodes ended.

    `env_pass_share` counts the passes before the user's reward functions and the group's rewards.
    """
    rewards = rewards_of(played)
    outcomes = [one.outcome for one in played]
    scored = [[one for one in task if one is not None] for task in rewards.values()]
    own = [
        next(
            one for one in (outcome.unshaped, outcome.ungrouped, outcome.reward) if one is not None
        )
        for outcome in outcomes
        if outcome.reward is not None
    ]
    return {
        "num_tasks": len(rewards),
        "num_episodes": len(played),
        "num_void": sum(outcome.reward is None for outcome in outcomes),
        "reward": _estimate(scored),
        "passes": _estimate(
            [[float(reward >= pass_threshold) for reward in task] for task in scored]
        ),
        "env_pass_share": _mean([float(reward >= pass_threshold) for reward in own]),
        "pass_threshold": pass_threshold,
        "statuses": dict(sorted(Counter(outcome.status.value for outcome in outcomes).items())),
        "turns_mean": _mean([outcome.num_turns for outcome in outcomes]),
        "tool_calls_mean": _mean([outcome.num_tool_calls for outcome in outcomes]),
        "malformed_mean": _mean([outcome.num_malformed for outcome in outcomes]),
        "tokens_mean": _mean([one.num_tokens for one in played]),
        "seconds_mean": _mean([one.elapsed_s for one in played]),
        "timed_out": sum(outcome.grader.get(TIMED_OUT, 0.0) for outcome in outcomes),
        "void_reasons": void_reasons(outcome.void_reason for outcome in outcomes),
    }


def _estimate(tasks: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    values = [one for task in tasks for one in task]
    if not values:
        return None
    return {
        "value": fmean(values),
        "stderr": clustered_stderr(tasks),
        "num_tasks": sum(map(bool, tasks)),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
