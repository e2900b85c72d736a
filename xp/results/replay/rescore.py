"""Settles the recorded episodes of a run by another rule of its rewards, without playing them.

The rule is `env.reward`, `env.reward_fn` and the rewards of groups: the same functions, with the same arguments, as at
the end of an episode and of its group.
Void episodes stay void, since what their environment would have scored is not known.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from xp.composition.points import from_container
from xp.envs.base import EnvFault, Provider, Task, ToolResult
from xp.envs.config import EnvConfig, load_provider
from xp.envs.picture_store import DIRECTORY, VARIABLE
from xp.episode.group import GroupSource
from xp.episode.judge import JUDGE, Judge, JudgeLog
from xp.episode.metrics import EpisodeFacts, episode_metrics
from xp.episode.mixture import description
from xp.episode.outcome import EpisodeResult, EpisodeStatus, GroupEpisode, Tokens
from xp.episode.rewards import EndedEpisode, RewardStep, RewardSteps, reward_steps
from xp.episode.trajectory import TRAIN
from xp.errors import ExitCode, XpError, nearest
from xp.execution.held_out import is_of_reward_fn, scoring_differences
from xp.lib.codec import from_value
from xp.lib.nested import grouped
from xp.lib.reading import recorded_spec
from xp.lib.secrets.redaction import resolve
from xp.lib.text import word_list
from xp.planning.episode import episode_config
from xp.results.evaluation.paired import PairedComparison, compare
from xp.results.evaluation.results import check_content, of_run
from xp.results.evaluation.statistics import Rewards
from xp.results.report.episodes import EpisodeEntry, EpisodeIndex
from xp.results.report.selection import AFTER, BEFORE
from xp.spec import RunSpec
from xp.worker.demonstrations import PHASE as SFT

MEAN: Final = "reward/avg_raw_reward"
FLAT: Final = "reward/groups_without_variance"
KEYS: Final = word_list("""
    reward_fn group_reward_fn group_score_weight judge
    reward.reduction reward.nonterminal reward.minimum reward.maximum
""")
"""Keys of an environment that make the rule."""


@dataclass(frozen=True)
class RescoredEpisode:
    """One episode: its entry, its recorded outcome, and that by the other rule."""

    entry: EpisodeEntry
    recorded: EpisodeResult
    outcome: EpisodeResult


@dataclass(frozen=True)
class RescoredStep:
    """Means of the episodes of one phase and step, as recorded and by the other rule. None means that all are void."""

    phase: str
    step: int
    """Rollout step, from 1. 0 means the evaluation before training."""
    episodes: int
    recorded: float | None
    rescored: float | None
    signal_recorded: float | None
    """Share of groups whose rewards differ, so that they teach something; in training only."""
    signal_rescored: float | None
    num_void: int
    """Void episodes by the other rule."""


def rescore(run: Path, rule: Mapping[str, Any]) -> list[RescoredEpisode]:
    """The episodes of the last attempt at each step, in order.

    Args:
        run: directory of the run.
        rule: `env.reward_fn`, `env.group_reward_fn`, `env.reward.KEY`, or the same of one member
            (`env.members.NAME.reward_fn`) -> value. Empty means the rule of the run.

    Raises:
        XpError: (CONFIG) a key or value is wrong, or a function cannot be loaded; (RUN_DIR) a file cannot be read;
            (ENVIRONMENT) a function wants a task's description and the environment does not give it.
    """
    spec = _with_rule(run, rule)
    index = EpisodeIndex(run)
    index.refresh()
    last = index.last_attempt_of()
    numbers = [
        number
        for number, entry in enumerate(index.entries)
        if entry.attempt == last[entry.phase, entry.step]
    ]
    with ExitStack() as stack:
        log = JudgeLog(
            run / JUDGE, [*run.glob(f"attempt_*/*/{JUDGE}/*.jsonl"), *run.glob(f"{JUDGE}/*.jsonl")]
        )
        members = {
            name: _Member(config, stack, log, run.parent.parent / DIRECTORY)
            for name, config in episode_config(spec).members.items()
        }
        episodes: list[RescoredEpisode] = []
        groups = defaultdict[tuple[str, int, str], list[tuple[int, GroupEpisode]]](list)
        for number, record in zip(numbers, index.records(numbers), strict=True):
            entry = index.entries[number]
            episodes.append(members[entry.env].settled(entry, record))
            if members[entry.env].rewards.has_group_steps:
                in_group = GroupEpisode(episodes[-1].outcome, record["messages"], _executed(record))
                groups[entry.phase, entry.step, entry.task].append((len(episodes) - 1, in_group))
        for (phase, _, _), group in groups.items():
            # A task that a step has twice has two groups, one after the other.
            size = spec.evaluation.samples_per_task
            if phase == TRAIN:
                size = spec.training.group_size
            for start in range(0, len(group), size):
                positions, in_groups = zip(*group[start : start + size], strict=True)
                entry = episodes[positions[0]].entry
                outcomes = members[entry.env].rewards.settle_group(_task(entry), in_groups)
                for position, outcome in zip(positions, outcomes, strict=True):
                    episodes[position] = replace(episodes[position], outcome=outcome)
        return episodes


def steps(episodes: Sequence[RescoredEpisode], spec: RunSpec) -> Iterator[RescoredStep]:
    """Means over each phase and step, in the order of play."""
    groups = grouped(((episode.entry.phase, episode.entry.step), episode) for episode in episodes)
    size = spec.training.group_size
    threshold = spec.evaluation.pass_threshold
    for (phase, step), members in sorted(
        groups.items(), key=lambda item: (_rank(item[0][0]), item[0][1])
    ):
        outcomes = zip(*((member.recorded, member.outcome) for member in members), strict=True)
        metrics = [
            episode_metrics(
                [
                    EpisodeFacts(member.entry.env, member.entry.task, outcome, 0)
                    for member, outcome in zip(members, of_rule, strict=True)
                ],
                size,
                threshold,
            )
            for of_rule in outcomes
        ]
        means = [metric.get(MEAN) for metric in metrics]
        signal = [
            1 - metric[FLAT] if phase == TRAIN and FLAT in metric else None for metric in metrics
        ]
        num_void = sum(member.outcome.status is EpisodeStatus.VOID for member in members)
        yield RescoredStep(
            phase, step, len(members), means[0], means[1], signal[0], signal[1], num_void
        )


def compared(
    runs: tuple[Path, Path],
    first: Sequence[RescoredEpisode],
    second: Sequence[RescoredEpisode],
    spec: RunSpec,
    margin: float,
) -> PairedComparison:
    """Compares the trained models of two runs, or of one run with the untrained one, by the other rule.

    Args:
        runs: directories of both; equal ones mean one run, before and after training.

    Raises:
        XpError: (PLAN) an evaluation has no episodes, or the tasks, their contents, or what scored them differ;
            (RUN_DIR) one of two runs has no evaluation.
    """
    names = runs[0].name, runs[1].name
    is_one = runs[0] == runs[1]
    before = _rewards(names[0], first, BEFORE if is_one else AFTER)
    after = _rewards(names[1], second, AFTER)
    if not is_one:
        _check_scorers(runs)
    labels = (f"{names[0]}@0" if is_one else names[0], names[1])
    return compare(labels, before, after, spec.evaluation.pass_threshold, margin)


def _check_scorers(runs: tuple[Path, Path]) -> None:
    """Raises XpError(PLAN) if the runs had other tasks, or if more than the rule of their rewards differs."""
    first, second = (of_run(run, run.name, "after") for run in runs)
    scorings = [first.record.scoring, second.record.scoring]
    differences = {
        key: text
        for key, text in scoring_differences(scorings).items()
        if not key.startswith("env.reward.")
        and not any(is_of_reward_fn(key, scoring) for scoring in scorings)
    }
    if differences:
        raise XpError(
            f"{first.name} and {second.name}: no rule of rewards makes them comparable, since their environments"
            f" scored by other means: {', '.join(differences.values())}",
            ExitCode.PLAN,
        )
    check_content(first, second)


def _rewards(name: str, episodes: Sequence[RescoredEpisode], phase: str) -> Rewards:
    rewards = grouped(
        (episode.entry.task, episode.outcome.reward)
        for episode in episodes
        if episode.entry.phase == phase
    )
    if not rewards:
        raise XpError(
            f"{name} has no episodes of {phase}, so that it is not compared", ExitCode.PLAN
        )
    return rewards


def _rank(phase: str) -> int:
    order = (SFT, BEFORE, TRAIN)
    if phase in order:
        return order.index(phase)
    return len(order) + (phase == AFTER)


def _with_rule(run: Path, rule: Mapping[str, Any]) -> RunSpec:
    file = run / "spec.yaml"
    container = recorded_spec(file)
    members: dict[str, dict[str, Any]] = container["env"]["members"]
    for key, value in rule.items():
        names = [*members]
        path = key.removeprefix("env.")
        if path.startswith("members."):
            name, _, path = path.removeprefix("members.").partition(".")
            if name not in members:
                raise XpError(
                    f"{key}: {run.name} has no environment {name}{nearest(name, members)}"
                )
            names = [name]
        if not key.startswith("env.") or path not in KEYS:
            known = [f"env.{path_of_key}" for path_of_key in KEYS]
            raise XpError(
                f"{key} is not a key of the reward's rule{nearest(key, known)}; legal: {', '.join(known)}"
            )
        section, _, last = path.rpartition(".")
        for name in names:
            (members[name][section] if section else members[name])[last] = value
    return from_container(container)


class _Member:
    """Settles the episodes of one environment."""

    def __init__(self, config: EnvConfig, stack: ExitStack, log: JudgeLog, pictures: Path) -> None:
        self._config = config
        self._stack = stack
        self._known: dict[Task, Mapping[str, Any]] = {}
        provider = None if config.group_score_weight is None else self._provider
        source = None
        if config.judge is not None:
            keys = resolve(filter(None, [config.judge.model.key_variable]))
            judge = Judge(
                config.judge,
                {**os.environ, **keys, VARIABLE: str(pictures)},
                self._description,
                log,
                config.dialect,
                config.images,
            )
            stack.callback(judge.close)
            source = GroupSource("judge", config.judge.weight, judge.score)
        self.rewards = reward_steps(config, provider, self._description, source)
        stack.callback(self.rewards.close)

    def settled(self, entry: EpisodeEntry, record: Mapping[str, Any]) -> RescoredEpisode:
        metadata = self._description(_task(entry)) if self.rewards.wants_task else {}
        return RescoredEpisode(
            entry, _recorded(record["outcome"]), settled_again(self.rewards, record, metadata)
        )

    @cached_property
    def _provider(self) -> Provider:
        provider = load_provider(self._config, os.environ)
        self._stack.callback(provider.close)
        return provider

    def _description(self, task: Task) -> Mapping[str, Any]:
        if task not in self._known:
            try:
                self._known[task] = description(self._provider, task)
            except EnvFault as fault:
                raise XpError(
                    f"the rule needs the description of {task.id}: {fault}", ExitCode.ENVIRONMENT
                ) from None
        return self._known[task]


def _task(entry: EpisodeEntry) -> Task:
    return Task(entry.env, entry.split, entry.task_index)


def settled_again(
    rewards: RewardSteps, record: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> EpisodeResult:
    """The outcome of a recorded episode by other reward steps, before those of its group.

    Args:
        rewards: the reward steps.
        record: the trajectory, as JSON values.
        metadata: the environment's description of the task, for functions with a parameter `task`.
    """
    recorded = _recorded(record["outcome"])
    if recorded.status is EpisodeStatus.VOID:
        return recorded
    result = replace(
        recorded, reward=None, metrics={}, unshaped=None, ungrouped=None, group={}, reward_steps={}
    )
    ended = EndedEpisode(
        task=Task(record["env"], record["split"], record["index"]),
        result=result,
        is_finished=any(
            call["result"]["finished"] for call in record["tool_calls"] if "result" in call
        ),
        messages=record["messages"],
        tool_calls=_executed(record),
        tokens=None if record["tokens"] is None else Tokens(**record["tokens"]),
        metadata=metadata or {},
    )
    return rewards.settle(ended)


def _executed(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name, arguments and ToolResult of each executed call."""
    return [
        {
            "name": call["name"],
            "arguments": call["arguments"],
            "result": ToolResult(**call["result"]),
        }
        for call in record["tool_calls"]
        if "result" in call and "name" in call
    ]


def _recorded(outcome: Mapping[str, Any]) -> EpisodeResult:
    """The recorded result, without the penalty for length, which is the training's and not a rule's."""
    result = from_value(EpisodeResult, outcome)
    steps = {
        step: reward for step, reward in result.reward_steps.items() if step != RewardStep.LENGTH
    }
    return replace(result, reward=result.task_reward, unpenalized=None, reward_steps=steps)
