"""Makes eval.json from the recorded episodes: statistics of each environment and of the mixture, and all rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from xp import __version__
from xp.episode.clusters import Limits, reward_limits
from xp.episode.evaluation import Estimate, evaluation_record
from xp.episode.metrics import EpisodeFacts
from xp.episode.outcome import EpisodeResult
from xp.execution.held_out import limits_of
from xp.lib.codec import from_value
from xp.planning.episode import episode_config
from xp.results.evaluation.records import EvaluationIdentity, Number, recorded_usage, task_of
from xp.results.evaluation.statistics import (
    CONFIDENCE,
    Rewards,
    bounded,
    mix_of,
    summarize,
)
from xp.spec import RunSpec
from xp.tasks.request import scoring
from xp.tasks.row import TaskRow

NOT_OF_REWARDS: Final = {"env_pass_share"}
"""Figures that do not follow from the rewards."""


def summary_of(
    requested: EvaluationIdentity,
    spec: RunSpec,
    episodes: Sequence[tuple[TaskRow, int]],
    records: Mapping[Number, Mapping[str, Any]],
    stopped: str | None,
    prices: tuple[float | None, float | None],
    name: str,
) -> dict[str, Any]:
    """The content of eval.json.

    Args:
        episodes: all episodes of the evaluation.
        records: records of the played episodes.
        stopped: reason of an early stop. None means that all episodes were played.
        prices: US dollars per million input tokens, and per million output tokens.
        name: name of the evaluation.
    """
    numbers = sorted((row.task_id, sample) for row, sample in episodes)
    chosen = [records[number] for number in numbers if number in records]
    hashes = {row.task_id: row.task_hash for row, _ in episodes}
    about = {
        "xp": __version__,
        "id": name,
        "env": requested.env,
        "model": dict(requested.model),
        "run": requested.run,
        "task_set": requested.tasks,
        "playing": dict(requested.playing),
        "confidence": CONFIDENCE,
    }
    rules = scoring(episode_config(spec))
    played = [_played(record) for record in chosen]
    record = evaluation_record(about, played, hashes, rules, len(numbers), stopped)
    record["usage"] |= usage(chosen, prices)
    return with_intervals(
        record, are_counted=all(record["tokens"] is not None for record in chosen)
    )


def _played(record: Mapping[str, Any]) -> EpisodeFacts:
    """An episode of its record."""
    tokens = record["tokens"] or {}
    outcome = from_value(EpisodeResult, record["outcome"])
    read = tokens.get("prompt", 0) + tokens.get("observed", 0)
    times = record["started_at"], record["elapsed_s"]
    return EpisodeFacts(
        record["env"], task_of(record), outcome, tokens.get("generated", 0), read, *times
    )


def with_intervals(record: Mapping[str, Any], *, are_counted: bool) -> dict[str, Any]:
    """A record with the intervals of its figures.

    Args:
        are_counted: whether the tokens of all episodes are known.
    """
    threshold = record["playing"]["pass_threshold"]
    rules = record["scoring"]
    rewards = {task: task_record["rewards"] for task, task_record in record["tasks"].items()}
    envs = {}
    for name, recorded in record["environments"].items():
        of_env = {task: values for task, values in rewards.items() if task.split("/")[0] == name}
        summary = summarize(of_env, threshold, limits_of(rules[name]))
        envs[name] = {
            **recorded,
            **summary.model_dump(exclude=NOT_OF_REWARDS),
            "bootstrap_differs": summary.bootstrap_differs,
        }
    whole = next(iter(envs.values()))
    if len(envs) > 1:
        limits = {limits_of(rule) for rule in rules.values()}
        whole = _mix(
            record["summary"], rewards, threshold, envs, *(limits if len(limits) == 1 else ())
        )
    for entry in (*envs.values(), whole) if not are_counted else ():
        entry["tokens_mean"] = None
    return {**record, "summary": whole, "environments": envs}


def usage(
    records: Sequence[Mapping[str, Any]], prices: tuple[float | None, float | None]
) -> dict[str, Any]:
    """Tokens over all episodes, and their price if it is known; None if an endpoint does not count tokens."""
    counts = [recorded_usage(record) for record in records]
    if not counts or any("prompt_tokens" not in count for count in counts):
        return {"prompt_tokens": None, "completion_tokens": None, "cost_usd": None}
    read, written = (
        sum(count[name] for count in counts) for name in ("prompt_tokens", "completion_tokens")
    )
    price_in, price_out = prices
    cost = None
    if price_in is not None and price_out is not None:
        cost = (read * price_in + written * price_out) / 1e6
    return {"prompt_tokens": read, "completion_tokens": written, "cost_usd": cost}


def _mix(
    recorded: Mapping[str, Any],
    rewards: Rewards,
    threshold: float,
    envs: Mapping[str, Mapping[str, Any]],
    limits_of_all: Limits = (None, None),
) -> dict[str, Any]:
    """Figures over all environments as strata, weighted by their numbers of scored episodes."""
    of_all = summarize(rewards, threshold, limits_of_all)
    summary = {**recorded, **of_all.model_dump(exclude=NOT_OF_REWARDS)}
    limits = reward_limits((reward for task in rewards.values() for reward in task), limits_of_all)
    for figure in ("reward", "passes", "avg_at_k"):
        scored = [env for env in envs.values() if env[figure]]
        if scored:
            weights = [env["num_episodes"] - env["num_void"] for env in scored]
            if figure == "avg_at_k":
                weights = [env[figure]["num_tasks"] for env in scored]
            mixed = bounded(
                mix_of([Estimate(**env[figure]) for env in scored], weights),
                (0.0, 1.0) if figure == "passes" else limits,
            )
            summary[figure] = mixed and mixed.model_dump()
    bounds = [env["void_bounds"] for env in envs.values()]
    void_bounds = summary["void_bounds"] if any(bounds) else None
    return summary | {"bootstrap": None, "bootstrap_differs": False, "void_bounds": void_bounds}
