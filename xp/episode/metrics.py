"""Metrics with the same meaning on every backend, computed from the episodes' results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from xp.envs.judges import total_usage
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.errors import ExitCode, XpError
from xp.lib.nested import grouped

FULL_REWARD: Final = 1.0
"""Default threshold of a pass, which is not part of a metric's name."""
TOKENS: Final = "training/tokens"


@dataclass(frozen=True)
class EpisodeFacts:
    """One episode, with the fields that the metrics need."""

    env: str
    task_id: str
    outcome: EpisodeResult
    num_tokens: int
    """Tokens that the policy generated, over all turns."""
    num_read: int = 0
    """Tokens that it read: of the prompt and of the environment's later messages."""
    started_at: float = 0.0
    """Seconds since the epoch."""
    elapsed_s: float = 0.0
    num_sampled: int = 0
    """Tokens that the policy generated, those of turns that are not trained on too; 0: `num_tokens`."""


def episode_metrics(
    played: Sequence[EpisodeFacts], group_size: int, pass_threshold: float
) -> dict[str, float]:
    """Metrics over one step's episodes, and the same for each environment of a mixture.

    Args:
        played: all episodes of the step; each `group_size` of one task, in their order, are one group.
        group_size: n of `reward/avg_pass_at_n`.
        pass_threshold: smallest reward that is a pass; part of that metric's name unless it is 1.
    """
    metrics = _metrics(played, group_size, pass_threshold)
    by_env = grouped((episode.env, episode) for episode in played)
    for env, episodes in sorted(by_env.items()) if len(by_env) > 1 else ():
        of_env = _metrics(episodes, group_size, pass_threshold)
        metrics |= {f"{env}/{key}": value for key, value in of_env.items()}
    return metrics


def all_tokens(played: Sequence[EpisodeFacts]) -> dict[str, float]:
    """Tokens of a step's episodes under the name of their total, which a step's log makes of them."""
    return {TOKENS: float(sum(episode.num_tokens + episode.num_read for episode in played))}


def check_health(played: Sequence[EpisodeFacts], max_void_fraction: float) -> None:
    """Raises XpError(UNHEALTHY) if too large a share of the episodes is void."""
    void = [episode.outcome for episode in played if episode.outcome.status is EpisodeStatus.VOID]
    if len(void) > max_void_fraction * len(played):
        raise XpError(
            f"{len(void)} of {len(played)} episodes are void, more than training.max_void_fraction={max_void_fraction}:"
            f" the environment is failing ({void_reasons(episode.void_reason for episode in void)})",
            ExitCode.UNHEALTHY,
        )


def void_reasons(reasons: Iterable[str | None]) -> str:
    """Up to three reasons of void episodes, each of another type of fault."""
    of_type = {
        reason.partition(":")[0]: reason for reason in sorted(filter(None, reasons), reverse=True)
    }
    return "; ".join(sorted(of_type.values())[:3])


def _metrics(
    played: Sequence[EpisodeFacts], group_size: int, pass_threshold: float
) -> dict[str, float]:
    scored = [episode for episode in played if episode.outcome.reward is not None]
    outcomes = [episode.outcome for episode in played]
    valid = [episode.outcome for episode in scored]
    rewards = [_reward(episode) for episode in scored]
    groups = _groups(played, group_size)
    step_rewards = [reward for outcome in valid for reward in outcome.step_rewards]
    num_trained = sum(episode.num_tokens for episode in played)
    metrics = {
        "episodes/num": float(len(played)),
        **{
            f"episodes/{status}": _mean([outcome.status is status for outcome in outcomes])
            for status in (EpisodeStatus.VOID, EpisodeStatus.TRUNCATED, EpisodeStatus.FINISHED)
        },
        "episodes/malformed": _mean([outcome.num_malformed > 0 for outcome in outcomes]),
        "episodes/tokens": _mean([episode.num_tokens for episode in played]),
        "environment/turns": _mean([outcome.num_turns for outcome in outcomes]),
        "environment/total_reward": sum(step_rewards, 0.0),
        "environment/num_rewards": float(len(step_rewards)),
    }
    num_sampled = sum(episode.num_sampled or episode.num_tokens for episode in played)
    if num_sampled > num_trained:
        metrics["episodes/trained_share"] = num_trained / num_sampled
    metrics |= _means("reward_fn", [outcome.metrics for outcome in valid])
    # Without the cost, if that of one episode is unknown.
    judges = total_usage([outcome.judges for outcome in valid])
    metrics |= {f"judges/{name}": value for name, value in judges.items()}
    metrics |= _means("group", [outcome.group for outcome in valid])
    metrics |= _means("grader", [outcome.grader for outcome in valid])
    metrics |= _means("pictures", [outcome.pictures for outcome in outcomes])
    if not scored:
        return metrics
    best = [max(episode.outcome.task_reward or 0.0 for episode in group) for group in groups]
    passes = [reward >= pass_threshold for reward in best]
    metrics["reward/avg_raw_reward"] = fmean(rewards)
    metrics["reward/mean_positive_reward"] = _mean([reward for reward in rewards if reward > 0])
    metrics[pass_name(group_size, pass_threshold)] = _mean(passes)
    if group_size > 1:
        equal = [len(set(map(_reward, group))) == 1 for group in groups]
        metrics["reward/groups_without_variance"] = _mean(equal)
    penalties = [
        _reward(episode) - episode.outcome.unpenalized
        for episode in scored
        if episode.outcome.unpenalized is not None
    ]
    if penalties:
        metrics["reward/overlong_penalty"] = fmean(penalties)
    return metrics


def pass_name(group_size: int, pass_threshold: float) -> str:
    """Name of the metric of the share of groups with a pass; it differs for each group size and threshold."""
    name = f"reward/avg_pass_at_{group_size}"
    if pass_threshold == FULL_REWARD:
        return name
    return f"{name}_from_{pass_threshold:g}"


def _means(source: str, entries: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each further metric of reward functions or graders, over the episodes that have it."""
    by_name = grouped(
        (f"{source}/{name}", value) for entry in entries for name, value in entry.items()
    )
    return {name: fmean(values) for name, values in sorted(by_name.items())}


def _groups(played: Sequence[EpisodeFacts], group_size: int) -> list[list[EpisodeFacts]]:
    """Each group's scored episodes; a task that a step has twice has two groups."""
    of_task = grouped((episode.task_id, episode) for episode in played)
    groups = [
        episodes[at : at + group_size]
        for episodes in of_task.values()
        for at in range(0, len(episodes), group_size)
    ]
    scored = [
        [episode for episode in group if episode.outcome.reward is not None] for group in groups
    ]
    return [group for group in scored if group]


def _reward(facts: EpisodeFacts) -> float:
    assert facts.outcome.reward is not None  # scored episodes only
    return facts.outcome.reward


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
