"""Rewards that are known only when a group has ended: its episodes are scored together, once, on every backend."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xp.envs.base import GroupScorer, Message, Provider, Task
from xp.envs.config import EnvConfig
from xp.envs.messages import chat_call
from xp.envs.pictures import parts_of, with_pictures
from xp.episode.dialects import syntax_of
from xp.episode.outcome import GroupEpisode
from xp.episode.shaping import numbers_of
from xp.errors import XpError
from xp.lib.load import load_object
from xp.spec.dialect import Dialect

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
    """Factor of its value, which is added to the reward. None means that its value replaces the reward."""
    score: Callable[[Task, Sequence[GroupEpisode]], GroupScores]
    """Raises any exception if it cannot score."""


def environment_source(config: EnvConfig, provider: Provider | None) -> GroupSource:
    """The environment's own comparison (ORS `score_group`), on a session of its own."""
    if not isinstance(provider, GroupScorer):
        raise XpError(
            f"env.group_score_weight: provider {config.provider} scores no groups; set null"
        )

    def score(task: Task, episodes: Sequence[GroupEpisode]) -> GroupScores:
        values = provider.score_group(
            task, [dialogue(episode, config.dialect) for episode in episodes]
        )
        return GroupScores(values, [{"environment": value} for value in values])

    return GroupSource("score_group", config.group_score_weight, score)


def function_source(name: str, describe: Describe, call: Callable[..., Any]) -> GroupSource:
    """The user's `group_reward_fn`: called with a list of GroupEpisode, and with `task` if it has this parameter.

    Args:
        call: calls a function by its name.
    """
    _, wants_task = load_group_fn(name)

    def score(task: Task, episodes: Sequence[GroupEpisode]) -> GroupScores:
        arguments: dict[str, Any] = {}
        if wants_task:
            named = {"id": task.id, "env": task.env, "split": task.split, "index": task.index}
            arguments["task"] = {**named, "metadata": dict(describe(task))}
        given = call(name, list(episodes), **arguments)
        if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(episodes):
            raise ValueError(
                f"it gave {given!r:.80}; it must give a list with one entry for each of {len(episodes)}"
            )
        values, entries = zip(*map(numbers_of, given), strict=True)
        return GroupScores(values, entries)

    return GroupSource(f"group_reward_fn {name}", None, score)


def load_group_fn(name: str) -> tuple[Callable[..., Any], bool]:
    """A function of `env.group_reward_fn`, and whether it has a parameter `task`; raises XpError."""
    try:
        function = load_object(name)
        signature = inspect.signature(function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise XpError(f"group_reward_fn {name} cannot be loaded: {error}") from error
    wants_task = "task" in list(signature.parameters)[1:]
    try:
        signature.bind([], **({"task": {}} if wants_task else {}))
    except TypeError as error:
        raise XpError(
            f"group_reward_fn {name} must take the list of the group's episodes, and may take `task`: {error}; its"
            f" parameters are {signature}"
        ) from None
    return function, wants_task


def dialogue(episode: GroupEpisode, dialect: Dialect | str) -> list[Message]:
    """An episode's messages with its executed calls as `tool_calls`, and without the model's thinking.

    A result that answers no executed call, such as the message about a malformed one, becomes a user's message.
    """
    plain = syntax_of(dialect).plain
    calls = deque(episode.tool_calls)
    messages: list[Message] = []
    turn: Message | None = None
    for message in episode.messages:
        rendered = Message(**message)
        if rendered["role"] == "assistant" and "tool_calls" not in rendered:
            turn = rendered = Message(role="assistant", content=plain(rendered["content"]))
        elif rendered["role"] == "tool" and turn is not None:
            if "tool_call_id" in rendered and calls and rendered.get("name") == calls[0]["name"]:
                call = calls.popleft()
                executed = chat_call(
                    rendered["tool_call_id"], call["name"], dict(call["arguments"])
                )
                turn.setdefault("tool_calls", []).append(executed)
            else:
                rendered = with_pictures(Message(role="user", content=""), parts_of(rendered))
        messages.append(rendered)
    return messages
