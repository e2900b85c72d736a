"""Rewards that are known only when a group has ended: its episodes are scored together, once, on every backend."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xp.envs.base import GroupScorer, Message, Provider, Task
from xp.envs.config import Dialect, EnvConfig, JudgeScoring
from xp.envs.judges import JudgeFault, total_usage
from xp.episode.dialects import syntax_of
from xp.episode.outcome import EpisodeResult, EpisodeStatus, GroupEpisode
from xp.episode.rewards import check_bound
from xp.episode.shaping import finished_value, numbers_of
from xp.errors import XpError
from xp.lib.load import load_object
from xp.lib.text import valid_text

Describe = Callable[[Task], Mapping[str, Any]]
"""Fetches the environment's own description of a task; raises EnvFault."""


@dataclass(frozen=True)
class GroupScores:
    """Result of one source of group rewards."""

    values: Sequence[float]
    """One number for each episode, in their order."""
    entries: Sequence[Mapping[str, float]]
    """Further numbers of each episode, for its record and the metrics."""
    judges: Mapping[str, float] = field(default_factory=dict)
    """Usage of judge models for all of them together."""


@dataclass(frozen=True)
class GroupSource:
    """One source of group rewards."""

    name: str
    """Name in messages."""
    weight: float | None
    """Factor of its value, which is added to the reward; None: its value replaces the reward."""
    score: Callable[[Task, Sequence[GroupEpisode]], GroupScores]
    """Raises any exception if it cannot score."""


class GroupRule:
    """The group rewards of one environment.

    Args:
        config: the environment.
        sources: its sources, in order; a later one reads the rewards of the earlier ones.
        least: smallest number of valid episodes that are scored.
    """

    def __init__(self, config: EnvConfig, sources: Sequence[GroupSource], least: int = 2) -> None:
        self._config, self._sources, self._least = config, sources, least

    def outcomes(self, task: Task, episodes: Sequence[GroupEpisode]) -> list[EpisodeResult]:
        """The results of a group's episodes with its rewards; all are void, with the reason, if a source fails.

        Void episodes are not shown to the sources. Fewer valid ones than `least` keep their own rewards: there is
        nothing to compare.
        """
        results = [one.outcome for one in episodes]
        valid = [at for at, one in enumerate(episodes) if one.outcome.reward is not None]
        if len(valid) >= self._least:
            for at, result in zip(valid, self._scored(task, [episodes[at] for at in valid]), strict=True):
                results[at] = result
        return results

    def _scored(self, task: Task, episodes: Sequence[GroupEpisode]) -> list[EpisodeResult]:
        episodes = [replace(one, outcome=_with_own(one.outcome)) for one in episodes]
        for source in self._sources:
            try:
                scores = source.score(task, episodes)
                share = {name: value / len(episodes) for name, value in scores.judges.items()}
                outcomes = [
                    self._with_score(source, share, *one)
                    for one in zip((one.outcome for one in episodes), scores.values, scores.entries, strict=True)
                ]
            except Exception as error:
                reason = valid_text(f"{source.name}: {type(error).__name__}: {error}")
                used = error.usage if isinstance(error, JudgeFault) else {}
                share = {name: value / len(episodes) for name, value in used.items()}
                return [
                    replace(
                        one.outcome,
                        status=EpisodeStatus.VOID,
                        reward=None,
                        void_reason=reason,
                        judges=total_usage([one.outcome.judges, share]),
                    )
                    for one in episodes
                ]
            episodes = [replace(one, outcome=outcome) for one, outcome in zip(episodes, outcomes, strict=True)]
        return [one.outcome for one in episodes]

    def _with_score(
        self,
        source: GroupSource,
        judges: Mapping[str, float],
        outcome: EpisodeResult,
        value: float,
        entries: Mapping[str, float],
    ) -> EpisodeResult:
        assert outcome.reward is not None  # valid episodes only
        reward = value if source.weight is None else outcome.reward + source.weight * value
        check_bound(reward, source.name)
        judges = total_usage([outcome.judges, judges])
        return replace(outcome, reward=reward, group={**outcome.group, **entries}, judges=judges)


def _with_own(outcome: EpisodeResult) -> EpisodeResult:
    """The outcome with its own reward on record; a judge may have been before the group."""
    return replace(outcome, ungrouped=outcome.reward if outcome.ungrouped is None else outcome.ungrouped)


def group_rules(
    config: EnvConfig, provider: Provider | None, describe: Describe, judge: GroupSource | None = None
) -> tuple[GroupRule | None, GroupRule | None]:
    """The judge of each episode alone, and the rewards of groups; None: the environment has none.

    Args:
        provider: the environment's provider; None: an environment without group scores of its own.
        describe: for functions with a parameter `task`.
        judge: the judge of `config.judge`.

    Raises:
        XpError: a function cannot be loaded, or the provider scores no groups.
    """
    sources: list[GroupSource] = []
    alone = None
    if judge is not None and config.judge is not None and config.judge.scoring is JudgeScoring.POINTWISE:
        alone, judge = GroupRule(config, [judge], least=1), None
    if config.group_score_weight is not None:
        sources.append(_of_environment(config, provider))
    if judge is not None:
        sources.append(judge)
    if config.group_reward_fn is not None:
        sources.append(_of_function(config.group_reward_fn, describe))
    return alone, GroupRule(config, sources) if sources else None


def _of_environment(config: EnvConfig, provider: Provider | None) -> GroupSource:
    """The environment's own comparison (ORS `score_group`), on a session of its own."""
    if not isinstance(provider, GroupScorer):
        raise XpError(f"env.group_score_weight: provider {config.provider} scores no groups; set null")

    def score(task: Task, episodes: Sequence[GroupEpisode]) -> GroupScores:
        values = provider.score_group(task, [dialogue(one, config.dialect) for one in episodes])
        return GroupScores(values, [{"environment": value} for value in values])

    return GroupSource("score_group", config.group_score_weight, score)


def _of_function(name: str, describe: Describe) -> GroupSource:
    """The user's `group_reward_fn`: called with a list of GroupEpisode, and with `task` if it has this parameter."""
    function, wants_task = load_group_fn(name)

    def score(task: Task, episodes: Sequence[GroupEpisode]) -> GroupScores:
        arguments: dict[str, Any] = {}
        if wants_task:
            named = {"id": task.id, "env": task.env, "split": task.split, "index": task.index}
            arguments["task"] = {**named, "metadata": dict(describe(task))}
        given = finished_value(function(list(episodes), **arguments))
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(episodes):
            raise ValueError(f"it gave {given!r:.80}; it must give a list with one entry for each of {len(episodes)}")
        values, entries = zip(*map(numbers_of, given), strict=True)
        return GroupScores(values, entries)

    return GroupSource(f"group_reward_fn {name}", None, score)


def load_group_fn(name: str) -> tuple[Callable[..., Any], bool]:
    """A function of `env.group_reward_fn`, and whether it has a parameter `task`; raises XpError."""
    try:
        function = load_object(name)
        parameters = list(inspect.signature(function).parameters.values())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise XpError(f"group_reward_fn {name} cannot be loaded: {error}") from error
    needed = [one.name for one in parameters[1:] if one.default is one.empty and one.name != "task"]
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise XpError(f"group_reward_fn {name} must take the list of the group's episodes as its first argument")
    if needed:
        raise XpError(f"group_reward_fn {name} has unknown parameters {', '.join(needed)}; `task` alone may follow")
    return function, any(one.name == "task" for one in parameters[1:])


def dialogue(episode: GroupEpisode, dialect: Dialect | str) -> list[Message]:
    """An episode's messages with its executed calls as `tool_calls`, and without the model's thinking.

    A result that answers no executed call, such as the message about a malformed one, becomes a user's message.
    """
    plain, calls = syntax_of(dialect).plain, deque(episode.tool_calls)
    messages: list[Message] = []
    turn: Message | None = None
    for message in episode.messages:
        one = Message(**message)
        if one["role"] == "assistant" and "tool_calls" not in one:
            turn = one = Message(role="assistant", content=plain(one["content"]))
        elif one["role"] == "tool" and turn is not None:
            if "tool_call_id" in one and calls and one.get("name") == calls[0]["name"]:
                call = calls.popleft()
                function = {"name": call["name"], "arguments": dict(call["arguments"])}
                turn.setdefault("tool_calls", []).append(
                    {"id": one["tool_call_id"], "type": "function", "function": function}
                )
            else:
                one = Message(role="user", content=one["content"])
        messages.append(one)
    return messages
