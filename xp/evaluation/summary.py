"""Makes eval.json from the recorded episodes: statistics of each environment and of the mixture, and all rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from xp import __version__
from xp.envs.graded import TIMED_OUT
from xp.envs.judges import total_usage
from xp.episode.clusters import Limits, reward_limits
from xp.episode.metrics import void_reasons
from xp.evaluation.records import SCHEMA_VERSION, EvaluationIdentity, Number, recorded_usage, rewards_of
from xp.evaluation.statistics import CONFIDENCE, Estimate, Summary, bounded, mix_of, summarize
from xp.planning.episode import episode_config
from xp.run_records.held_out import limits_of
from xp.spec import RunSpec
from xp.tasks.request import scoring
from xp.tasks.row import TaskRow


def summary_of(
    requested: EvaluationIdentity,
    spec: RunSpec,
    episodes: Sequence[tuple[TaskRow, int]],
    records: Mapping[Number, Mapping[str, Any]],
    stopped: str | None,
    prices: tuple[float | None, float | None],
) -> dict[str, Any]:
    """The content of eval.json.

    Args:
        episodes: all episodes of the evaluation.
        records: records of the played episodes.
        stopped: reason of an early stop; None: all episodes were played.
        prices: US dollars per million input tokens, and per million output tokens.
    """
    numbers = [(row.task_id, sample) for row, sample in episodes]
    played = {number: records[number] for number in numbers if number in records}
    rewards = rewards_of(records, numbers)
    hashes = {row.task_id: row.task_hash for row, _ in episodes}
    threshold, rules = spec.evaluation.pass_threshold, scoring(episode_config(spec))
    envs = {
        name: _figures(
            {task: one for task, one in rewards.items() if task.split("/")[0] == name},
            [one for one in played.values() if one["env"] == name],
            threshold,
            limits_of(rules[name]),
        )
        for name in spec.env.members
    }
    judges = [one["outcome"].get("judges") or {} for one in played.values()]
    whole = next(iter(envs.values()))
    if len(envs) > 1:
        limits = {limits_of(one) for one in rules.values()}
        whole = _mix(rewards, list(played.values()), threshold, envs, *(limits if len(limits) == 1 else ()))
    return {
        "schema_version": SCHEMA_VERSION,
        "xp": __version__,
        "id": "",
        "env": requested.env,
        "model": dict(requested.model),
        "run": requested.run,
        "status": "finished" if len(played) == len(numbers) else "stopped",
        "stopped": stopped if len(played) < len(numbers) else None,
        "num_asked": len(numbers),
        "num_played": len(played),
        "started": min((one["started_at"] for one in played.values()), default=None),
        "ended": max((one["started_at"] + one["elapsed_s"] for one in played.values()), default=None),
        "task_set": requested.tasks,
        "playing": dict(requested.playing),
        "confidence": CONFIDENCE,
        "summary": whole,
        "environments": envs,
        "usage": usage(list(played.values()), prices) | {"judges": total_usage(judges)},
        "scoring": rules,
        "tasks": {task: {"hash": hashes[task], "rewards": values} for task, values in rewards.items()},
    }


def usage(records: Sequence[Mapping[str, Any]], prices: tuple[float | None, float | None]) -> dict[str, Any]:
    """Tokens over all episodes, and their price if it is known; None if an endpoint does not count tokens."""
    counts = [recorded_usage(record) for record in records]
    if not counts or any("prompt_tokens" not in one for one in counts):
        return {"prompt_tokens": None, "completion_tokens": None, "cost_usd": None}
    read, written = (sum(one[name] for one in counts) for name in ("prompt_tokens", "completion_tokens"))
    price_in, price_out = prices
    cost = None if price_in is None or price_out is None else (read * price_in + written * price_out) / 1e6
    return {"prompt_tokens": read, "completion_tokens": written, "cost_usd": cost}


def _figures(
    rewards: Mapping[str, Sequence[float | None]],
    records: Sequence[Mapping[str, Any]],
    threshold: float,
    limits: Limits,
) -> dict[str, Any]:
    """A Summary as JSON values, with statistics of the episodes."""
    summary = summarize(rewards, threshold, limits)
    return {**_as_json(summary), "bootstrap_differs": summary.bootstrap_differs, **_episodes(records)}


def _mix(
    rewards: Mapping[str, Sequence[float | None]],
    records: Sequence[Mapping[str, Any]],
    threshold: float,
    envs: Mapping[str, Mapping[str, Any]],
    limits_of_all: Limits = (None, None),
) -> dict[str, Any]:
    """Statistics over all environments as strata, weighted by their numbers of scored episodes."""
    summary = _as_json(summarize(rewards, threshold, limits_of_all))
    limits = reward_limits((one for task in rewards.values() for one in task), limits_of_all)
    for figure in ("reward", "passes", "avg_at_k"):
        parts = [(one[figure], one["num_episodes"] - one["num_void"]) for one in envs.values() if one[figure]]
        if parts:
            estimates = [Estimate(**part) for part, _ in parts]
            weights = [part["num_tasks"] if figure == "avg_at_k" else count for part, count in parts]
            mixed = bounded(mix_of(estimates, weights), (0.0, 1.0) if figure == "passes" else limits)
            summary[figure] = mixed and asdict(mixed)
    summary |= {"bootstrap": None, "bootstrap_differs": False}
    bounds = [one["void_bounds"] for one in envs.values()]
    return {**summary, "void_bounds": summary["void_bounds"] if any(bounds) else None, **_episodes(records)}


def _as_json(summary: Summary) -> dict[str, Any]:
    value = asdict(summary)
    for name in ("pass_at_k", "pass_hat_k"):
        value[name] = {str(k): one for k, one in value[name].items()}
    return value


def _episodes(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts of statuses, and means over all episodes."""
    outcomes = [one["outcome"] for one in records]
    written = [one["tokens"]["generated"] for one in records if one["tokens"] is not None]
    return {
        "statuses": dict(sorted(Counter(one["status"] for one in outcomes).items())),
        "turns_mean": _mean([one["num_turns"] for one in outcomes]),
        "tool_calls_mean": _mean([one["num_tool_calls"] for one in outcomes]),
        "malformed_mean": _mean([one["num_malformed"] for one in outcomes]),
        "tokens_mean": _mean(written) if len(written) == len(records) else None,
        "seconds_mean": _mean([one["elapsed_s"] for one in records]),
        "timed_out": sum((one.get("grader") or {}).get(TIMED_OUT, 0.0) for one in outcomes),
        "void_reasons": void_reasons(one["void_reason"] for one in outcomes),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
