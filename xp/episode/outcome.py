"""Results of an episode: its turns, the reply to each, and the final result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from xp.envs.base import Message, TakenResult, ToolResult
from xp.episode.tool_calls import ParsedCall


class EpisodeStatus(StrEnum):
    """Status of an episode."""

    ONGOING = "ongoing"
    FINISHED = "finished"
    """The environment ended the episode."""
    STOPPED = "stopped"
    """A turn without a (well-formed) tool call ended the episode; no token limit cut it."""
    TRUNCATED = "truncated"
    """A limit of turns or tokens ended the episode, or cut the turn that ended it."""
    VOID = "void"
    """Infrastructure failed; there is no reward."""


@dataclass(frozen=True)
class Turn:
    """One assistant message and its results, for the trajectory."""

    text: str
    calls: tuple[ParsedCall, ...]
    results: tuple[ToolResult, ...]
    messages: tuple[Message, ...]
    """The environment's messages, including the last ones of the episode."""
    elapsed_s: float
    """Seconds that the environment took."""

    @property
    def shown(self) -> list[Message]:
        """The messages for records and judges: an assistant's message in a new prompt is not a turn of the policy."""
        return [
            Message({**message, "role": "history"}) if message["role"] == "assistant" else message
            for message in self.messages
        ]

    @property
    def follows(self) -> int | None:
        """Number of the turn that `messages` come after, or NEW_PROMPT; None: this one."""
        last = self.results[-1] if self.results else None
        if isinstance(last, TakenResult):
            return last.follows
        return None


@dataclass(frozen=True)
class Reply:
    """Reply to one assistant turn: messages to append, or the end."""

    messages: tuple[Message, ...]
    status: EpisodeStatus
    follows: int | None = None
    """Number of the turn that the messages come after, or NEW_PROMPT; None: the last one."""
    tools: str = "[]"
    """JSON list of the tools' schemas, for a new prompt."""

    @property
    def is_done(self) -> bool:
        return self.status is not EpisodeStatus.ONGOING


@dataclass(frozen=True)
class Tokens:
    """Token counts of an episode, from the trainer or engine that plays it."""

    prompt: int
    """Tokens of the first messages."""
    generated: int
    """Tokens that the model wrote, over all turns."""
    observed: int
    """Tokens of the environment's later messages."""

    @property
    def response(self) -> int:
        """Tokens after the prompt, which training.max_response_tokens bounds."""
        return self.generated + self.observed


@dataclass(frozen=True)
class EpisodeResult:
    """Result of an episode. `reward is None` if and only if `status is EpisodeStatus.VOID`."""

    status: EpisodeStatus
    reward: float | None
    step_rewards: tuple[float, ...]
    num_turns: int
    num_tool_calls: int
    num_malformed: int
    void_reason: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the user's reward function returned in addition to the reward."""
    unshaped: float | None = None
    """Reward before the user's reward functions. None means that there are none, or the episode is void."""
    judges: Mapping[str, float] = field(default_factory=dict)
    """Usage of judge models: `prompt_tokens`, `completion_tokens`, and `cost_usd` if all prices are known."""
    grader: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the environment's grader returned in addition to the reward."""
    ungrouped: float | None = None
    """Reward before the judge and the group's rewards. None means that neither scored the episode."""
    group: Mapping[str, float] = field(default_factory=dict)
    """Scores of the judge and the group, by source and before their weights, and a group function's other numbers."""
    unpenalized: float | None = None
    """Reward before the penalty for length of a training. None means that there is no penalty, or the episode is
    void."""
    pictures: Mapping[str, float] = field(default_factory=dict)
    """Number of pictures that the model got (`read`) and that a text stands for (`left_out`); empty without
    model.images."""
    faults: tuple[tuple[str, str], ...] = ()
    """Calls and faults of sessions; a fresh session followed each one, except the last one of a void episode."""
    reward_steps: Mapping[str, float] = field(default_factory=dict)
    """Reward after each step of its computation (xp.episode.rewards.RewardStep), in order; a void episode has those
    before the fault."""

    @property
    def task_reward(self) -> float | None:
        """The reward without the penalty for length."""
        if self.unpenalized is None:
            return self.reward
        return self.unpenalized


@dataclass(frozen=True)
class GroupEpisode:
    """One settled episode, as the sources of group rewards see it."""

    outcome: EpisodeResult
    messages: Sequence[Message]
    """All messages, from the first one."""
    tool_calls: Sequence[Mapping[str, Any]]
    """`name`, `arguments` and `result` (a ToolResult) of each executed call, in order."""
