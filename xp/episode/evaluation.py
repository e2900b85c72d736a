"""The record of an evaluation, `eval.json`: the same of a run's stages and of `xp eval`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from xp.envs.graded import TIMED_OUT
from xp.envs.judges import total_usage
from xp.episode.clusters import clustered_stderr
from xp.episode.metrics import EpisodeFacts, void_reasons
from xp.errors import ExitCode, XpError
from xp.lib.nested import grouped
from xp.lib.reading import LARGEST, MAX_COUNT, json_of

RECORD: Final = "eval.json"
SCHEMA_VERSION: Final = 2
STUDENT: Final = "t"
"""Method of an interval: Student's."""
DIFFERS: Final = 0.2
"""Difference between bounds of both intervals, as a share of the width, above which the bootstrap is reported."""


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
        name: figures([episode for episode in played if episode.env == name], threshold)
        for name in scoring
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **about,
        "status": "finished" if len(played) == num_asked else "stopped",
        "stopped": stopped if len(played) < num_asked else None,
        "num_asked": num_asked,
        "num_played": len(played),
        "started": min((episode.started_at for episode in played), default=None),
        "ended": max((episode.started_at + episode.elapsed_s for episode in played), default=None),
        "summary": next(iter(envs.values())) if len(envs) == 1 else figures(played, threshold),
        "environments": envs,
        "usage": {
            "prompt_tokens": sum(episode.num_read for episode in played),
            "completion_tokens": sum(episode.num_tokens for episode in played),
            "cost_usd": None,
            "judges": total_usage([episode.outcome.judges for episode in played]),
        },
        "scoring": dict(scoring),
        "tasks": {
            task: {"hash": hashes[task], "rewards": rewards} for task, rewards in tasks.items()
        },
    }


def rewards_of(played: Sequence[EpisodeFacts]) -> dict[str, list[float | None]]:
    """Task -> the rewards of its episodes, in the order of play. None means void."""
    return grouped((episode.task_id, episode.outcome.reward) for episode in played)


def figures(played: Sequence[EpisodeFacts], pass_threshold: float) -> dict[str, Any]:
    """Means over the scored episodes, with standard errors clustered by task, and how all episodes ended.

    `env_pass_share` counts the passes before the user's reward functions and the group's rewards.
    """
    rewards = rewards_of(played)
    outcomes = [episode.outcome for episode in played]
    scored = [[reward for reward in task if reward is not None] for task in rewards.values()]
    unshaped = [
        next(
            reward
            for reward in (outcome.unshaped, outcome.ungrouped, outcome.reward)
            if reward is not None
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
        "env_pass_share": _mean([float(reward >= pass_threshold) for reward in unshaped]),
        "pass_threshold": pass_threshold,
        "statuses": dict(sorted(Counter(outcome.status.value for outcome in outcomes).items())),
        "turns_mean": _mean([outcome.num_turns for outcome in outcomes]),
        "tool_calls_mean": _mean([outcome.num_tool_calls for outcome in outcomes]),
        "malformed_mean": _mean([outcome.num_malformed for outcome in outcomes]),
        "tokens_mean": _mean([episode.num_tokens for episode in played]),
        "seconds_mean": _mean([episode.elapsed_s for episode in played]),
        "timed_out": sum(outcome.grader.get(TIMED_OUT, 0.0) for outcome in outcomes),
        "void_reasons": void_reasons(outcome.void_reason for outcome in outcomes),
    }


def _estimate(tasks: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    values = [reward for task in tasks for reward in task]
    if not values:
        return None
    return {
        "value": fmean(values),
        "stderr": clustered_stderr(tasks),
        "num_tasks": sum(map(bool, tasks)),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class _Part(BaseModel):
    """A part of an eval.json; keys that are not read here are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)


class Estimate(_Part):
    """A value with its standard error, and in a record of `xp eval` with its interval."""

    value: Number
    stderr: Number | None
    """Standard error, clustered by task. None means that there is only one task."""
    low: Number | None = None
    high: Number | None = None
    """Bounds of the interval. None means that there is only one task, or all tasks have the same value."""
    method: str = STUDENT
    """`t` (Student's, tasks - 1 degrees of freedom) or `exact` (Clopper-Pearson, if all tasks or none pass)."""
    num_tasks: Count


class Bounds(_Part):
    """Lowest and highest possible mean reward, over all possible rewards of the void episodes."""

    low: Number
    high: Number
    of: str
    """Source of the rewards' limits. `rule`: the reward rule; `observed`: the smallest and largest reward."""


class Figures(_Part):
    """Figures of one model on one environment, or on a mixture; those after `env_pass_share` are of `xp eval` alone."""

    num_tasks: Count
    num_episodes: Count
    num_void: Count
    reward: Estimate | None
    """Mean reward. None means that every episode is void."""
    passes: Estimate | None
    """Share of episodes with a reward of at least `pass_threshold`."""
    pass_threshold: Number
    env_pass_share: Number | None = None
    """Share of passes before the user's reward functions and the group's rewards."""
    bootstrap: tuple[Number, Number] | None = None
    """Bootstrap interval of the mean reward, by resampling tasks (BCa). None means that all tasks have the same
    mean."""
    avg_at_k: Estimate | None = None
    """Mean over tasks of each task's mean reward."""
    pass_at_k: Mapping[str, Estimate] = {}
    """k -> unbiased probability that one of k episodes passes, over tasks with at least k scored episodes."""
    pass_hat_k: Mapping[str, Estimate] = {}
    """k -> unbiased probability that all of k episodes pass (pass^k)."""
    void_bounds: Bounds | None = None
    """Bounds of the mean reward with void episodes. None means that no episode is void, or all are."""

    @property
    def num_scored(self) -> int:
        return self.num_episodes - self.num_void

    @property
    def bootstrap_differs(self) -> bool:
        """Returns whether the bootstrap interval differs notably from Student's."""
        reward = self.reward
        if self.bootstrap is None or reward is None or reward.low is None or reward.high is None:
            return False
        low, high = self.bootstrap
        width = reward.high - reward.low
        return max(abs(low - reward.low), abs(high - reward.high)) > DIFFERS * width


class _Named(_Part):
    name: str


class _Usage(_Part):
    cost_usd: Number | None
    prompt_tokens: Count | None
    completion_tokens: Count | None
    judges: dict[str, Number]


class _Task(_Part):
    hash: str
    rewards: list[Number | None]


class _Overlap(_Part):
    num_trained_on: Count
    num_held_out: Count


class EvaluationRecord(_Part):
    """The content of an eval.json, of a run or of `xp eval`."""

    schema_version: Literal[2]
    id: str
    env: str
    status: str
    model: _Named
    run: str | None
    num_asked: Count
    num_played: Count
    summary: Figures
    environments: dict[str, Figures]
    usage: _Usage
    tasks: dict[str, _Task]
    scoring: dict[str, dict[str, Any]]
    held_out: dict[str, _Overlap] = {}
    task_set: str | None = None
    """Absent in records of early versions."""
    digest: str | None = None
    """Digest of what decides the result. None for a record of `xp eval`, whose directory has it in its name."""
    content: Mapping[str, Any] = {}
    """The whole file, with the keys that are not read here."""

    @property
    def rewards(self) -> dict[str, list[float | None]]:
        """Task -> the rewards of its episodes. None means void."""
        return {task: episodes.rewards for task, episodes in self.tasks.items()}


def read_evaluation(file: Path) -> EvaluationRecord:
    """Reads an eval.json; raises XpError(RUN_DIR) for another file."""
    value = json_of(file, ExitCode.RUN_DIR, below=file.parent)
    try:
        record = EvaluationRecord.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise XpError(
            f"{file} is not the record of an evaluation: {fault}", ExitCode.RUN_DIR
        ) from None
    return record.model_copy(update={"content": value})
