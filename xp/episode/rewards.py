"""The reward of an episode, step by step, the same for every trainer: `RewardStep` lists the steps in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from xp.envs.base import EnvFault, Message, Provider, Task
from xp.envs.call_functions import CalledFunctions
from xp.envs.config import EnvConfig
from xp.envs.judges import JudgeFault, total_usage
from xp.episode.group import (
    Describe,
    GroupSource,
    environment_source,
    function_source,
)
from xp.episode.outcome import EpisodeResult, EpisodeStatus, GroupEpisode, Tokens
from xp.episode.shaping import RewardFnFault, Shape, load_shape, shaped_reward
from xp.lib.text import valid_text
from xp.spec import RunSpec
from xp.spec.algorithm import OverlongSpec
from xp.spec.env import MAX_REWARD, Reduction, Reward
from xp.spec.judge import JudgeScoring


class RewardStep(StrEnum):
    """The steps of a reward, in their order; an environment has the first one, and those that its keys add.

    Each step reads the reward after the step before it. `EpisodeResult.reward_steps` records the reward after each one.
    """

    REDUCE = "reduce"
    """`env.reward`: one number from the step rewards, within the rule's limits."""
    REWARD_FN = "reward_fn"
    """`env.reward_fn`: the weighted sum of the user's functions replaces the reward."""
    JUDGE = "judge"
    """`env.judge` with pointwise scoring: adds the weighted score of the episode."""
    SCORE_GROUP = "score_group"
    """`env.group_score_weight`: adds the environment's own weighted score, once the group has ended."""
    GROUP_JUDGE = "group_judge"
    """`env.judge` with pairwise or groupwise scoring: adds the weighted score of the comparison."""
    GROUP_REWARD_FN = "group_reward_fn"
    """`env.group_reward_fn`: the user's function of all episodes of the group replaces the reward."""
    LENGTH = "length"
    """`algorithm.overlong`: adds the penalty for length, in a training only."""


REDUCTIONS: Mapping[Reduction, Callable[[Sequence[float]], float]] = {
    Reduction.SUM: math.fsum,
    Reduction.MEAN: lambda rewards: math.fsum(rewards) / len(rewards),
    Reduction.MAX: max,
    Reduction.MIN: min,
    Reduction.LAST: lambda rewards: rewards[-1],
}


@dataclass(frozen=True)
class EndedEpisode:
    """An episode before its reward is computed."""

    task: Task
    result: EpisodeResult
    """Everything but the reward; a void one gets none."""
    is_finished: bool
    """True if the environment ended the episode."""
    messages: Sequence[Message]
    tool_calls: Sequence[Mapping[str, Any]]
    """`name`, `arguments` and `result` of each executed call."""
    tokens: Tokens | None
    metadata: Mapping[str, Any]
    """The environment's description of the task; empty if no reward function has a parameter `task`."""

    def arguments(self) -> dict[str, Any]:
        """Arguments that a reward function may have, in addition to the outcome."""
        task = self.task
        named = {"env": task.env, "split": task.split, "index": task.index}
        return {
            **named,
            "task": {"id": task.id, **named, "metadata": dict(self.metadata)},
            "messages": self.messages,
            "tool_calls": self.tool_calls,
            "tokens": self.tokens,
        }


class RewardSteps:
    """The reward steps of one environment's episodes.

    Args:
        rule: step REDUCE.
        functions: step REWARD_FN.
        judge: step JUDGE.
        group: the steps of a group, in order.
        called: processes of the functions. None means that they are called in this process.
    """

    def __init__(
        self,
        rule: Reward,
        functions: Sequence[Shape] = (),
        judge: GroupSource | None = None,
        group: Mapping[RewardStep, GroupSource] | None = None,
        called: CalledFunctions | None = None,
    ) -> None:
        self._called = called
        self._rule = rule
        self._functions = functions
        self._group = group or {}
        self.has_group_steps = bool(group)
        self._alone = {} if judge is None else {RewardStep.JUDGE: judge}

    @property
    def wants_task(self) -> bool:
        """Returns whether a reward function has a parameter `task`."""
        return any(function.wants("task") for function in self._functions)

    def close(self) -> None:
        """Ends the processes of the functions."""
        if self._called is not None:
            self._called.close()

    def settle(self, episode: EndedEpisode) -> EpisodeResult:
        """Applies REDUCE, REWARD_FN and JUDGE; the episode is void, with the reason, if one of them fails."""
        result = episode.result
        if result.status is EpisodeStatus.VOID:
            return result
        try:
            reward = reduce_rewards(result.step_rewards, episode.is_finished, self._rule)
            result = _after(result, RewardStep.REDUCE, reward)
            if self._functions:
                reward, metrics = shaped_reward(result, self._functions, episode.arguments())
                result = _after(
                    result, RewardStep.REWARD_FN, reward, metrics=metrics, unshaped=result.reward
                )
            check_bound(reward, "the episode")
        except RewardFnFault as fault:
            return _void(result, str(fault))
        except (OverflowError, EnvFault) as fault:
            return _void(result, f"{type(fault).__name__}: {fault}")
        in_group = GroupEpisode(result, episode.messages, episode.tool_calls)
        (result,) = _scored(episode.task, [in_group], self._alone)
        return result

    def settle_group(self, task: Task, episodes: Sequence[GroupEpisode]) -> list[EpisodeResult]:
        """Applies SCORE_GROUP, GROUP_JUDGE and GROUP_REWARD_FN; all episodes are void if one of them fails.

        Void episodes are not shown to the sources. A single valid one keeps its reward: there is nothing to compare.
        """
        results = [episode.outcome for episode in episodes]
        valid = [at for at, result in enumerate(results) if result.reward is not None]
        if len(valid) > 1:
            scored = _scored(task, [episodes[at] for at in valid], self._group)
            for at, result in zip(valid, scored, strict=True):
                results[at] = result
        return results


def reward_steps(
    config: EnvConfig,
    provider: Provider | None,
    describe: Describe,
    judge: GroupSource | None = None,
) -> RewardSteps:
    """The reward steps of an environment's episodes.

    Args:
        provider: the environment's provider. None means an environment without group scores of its own.
        describe: for functions with a parameter `task`.
        judge: the judge of `config.judge`.

    Raises:
        XpError: a function cannot be loaded, or the provider scores no groups.
    """
    called = CalledFunctions(config)
    functions = [
        load_shape(function.fn, function.weight, called.call) for function in config.reward_fn or ()
    ]
    is_alone = config.judge is not None and config.judge.scoring is JudgeScoring.POINTWISE
    group: dict[RewardStep, GroupSource] = {}
    if config.group_score_weight is not None:
        group[RewardStep.SCORE_GROUP] = environment_source(config, provider)
    if judge is not None and not is_alone:
        group[RewardStep.GROUP_JUDGE] = judge
    if config.group_reward_fn is not None:
        group[RewardStep.GROUP_REWARD_FN] = function_source(
            config.group_reward_fn, describe, called.call
        )
    return RewardSteps(config.reward, functions, judge if is_alone else None, group, called)


def reduce_rewards(step_rewards: Sequence[float], finished: bool, rule: Reward) -> float:
    """The reward of an episode that is not void.

    Args:
        step_rewards: rewards of the steps that the environment scored, in order.
        finished: whether the environment ended the episode.
        rule: reduction, non-terminal reward and limits.

    Returns:
        A finite number; 0.0 (within the limits) if no step was scored, which counts as the model's failure.

    Raises:
        OverflowError: the rewards are finite, but their sum is not.
    """
    rewards = [*step_rewards]
    if not finished and rule.nonterminal is not None:
        rewards.append(rule.nonterminal)
    reward = REDUCTIONS[rule.reduction](rewards) if rewards else 0.0
    if not math.isfinite(reward):
        raise OverflowError(f"the {rule.reduction} of the step rewards is {reward}")
    if rule.minimum is not None:
        reward = max(reward, rule.minimum)
    if rule.maximum is not None:
        reward = min(reward, rule.maximum)
    return float(reward)


class RewardOutOfBounds(EnvFault):
    """A reward that is infinite, not a number, or so large that its square exceeds float32."""


def check_bound(reward: float, what: str) -> None:
    """Raises RewardOutOfBounds unless `reward` is a number of at most MAX_REWARD.

    Args:
        what: source of the reward, for the message.
    """
    if not abs(reward) <= MAX_REWARD:  # Also true for NaN.
        raise RewardOutOfBounds(
            f"the reward of {what} is {reward:g}; at most {MAX_REWARD:g} counts"
        )


@dataclass(frozen=True)
class Overlong:
    """Soft punishment of long responses (DAPO, arXiv:2503.14476, eq. 13)."""

    rule: OverlongSpec
    longest: int
    """L_max: response length with the whole penalty."""

    @staticmethod
    def of(spec: RunSpec) -> Overlong | None:
        """The penalty for length of the training's episodes. None means that there is none."""
        rule = spec.algorithm.overlong
        if rule is None:
            return None
        return Overlong(rule, spec.training.max_response_tokens)

    def penalty(self, num_response: int) -> float:
        """Summand of the reward of a response of `num_response` tokens: from 0 to -factor."""
        excess = num_response - (self.longest - self.rule.buffer_tokens)
        return -self.rule.factor * min(max(excess / self.rule.buffer_tokens, 0.0), 1.0)


def penalized(
    result: EpisodeResult, overlong: Overlong | None, tokens: Tokens | None
) -> EpisodeResult:
    """Applies LENGTH, the last step, since a step of the group may replace the reward."""
    if overlong is None or tokens is None or result.reward is None:
        return result
    reward = result.reward + overlong.penalty(tokens.response)
    return _after(result, RewardStep.LENGTH, reward, unpenalized=result.reward)


def _scored(
    task: Task, episodes: Sequence[GroupEpisode], sources: Mapping[RewardStep, GroupSource]
) -> list[EpisodeResult]:
    """The results of valid episodes after some steps; each source reads the rewards after the step before it."""
    results = [episode.outcome for episode in episodes]
    for step, source in sources.items():
        results = [_with_own_reward(result) for result in results]
        group = [
            replace(episode, outcome=result)
            for episode, result in zip(episodes, results, strict=True)
        ]
        usage: Mapping[str, float] = {}
        reason = ""
        try:
            scores = source.score(task, group)
            usage = scores.judges
            given = zip(results, scores.values, scores.entries, strict=True)
            results = [_with_score(step, source, *score) for score in given]
        except Exception as error:
            if isinstance(error, JudgeFault):
                usage = error.usage
            reason = f"{source.name}: {type(error).__name__}: {error}"
        results = [_with_usage(result, usage, len(results)) for result in results]
        if reason:
            return [_void(result, reason) for result in results]
    return results


def _with_score(
    step: RewardStep,
    source: GroupSource,
    result: EpisodeResult,
    value: float,
    entries: Mapping[str, float],
) -> EpisodeResult:
    assert result.reward is not None  # valid episodes only
    reward = value
    if source.weight is not None:
        reward = result.reward + source.weight * value
    check_bound(reward, source.name)
    return _after(result, step, reward, group={**result.group, **entries})


def _after(result: EpisodeResult, step: RewardStep, reward: float, **changes: Any) -> EpisodeResult:
    return replace(
        result, reward=reward, reward_steps={**result.reward_steps, step: reward}, **changes
    )


def _void(result: EpisodeResult, reason: str) -> EpisodeResult:
    return replace(result, status=EpisodeStatus.VOID, reward=None, void_reason=valid_text(reason))


def _with_own_reward(result: EpisodeResult) -> EpisodeResult:
    """The result with the reward before the first judge or step of the group on record."""
    if result.ungrouped is not None:
        return result
    return replace(result, ungrouped=result.reward)


def _with_usage(
    result: EpisodeResult, usage: Mapping[str, float], num_episodes: int
) -> EpisodeResult:
    """The result with its share of what a judge used for several episodes."""
    share = {name: value / num_episodes for name, value in usage.items()}
    return replace(result, judges=total_usage([result.judges, share]))
