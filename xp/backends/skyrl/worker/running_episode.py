"""State of an episode in SkyRL's agent loop that the loop itself does not keep: all trainers get the same tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from xp.engines.rows import Rows, tokens_of
from xp.episode.episode import Episode
from xp.episode.outcome import Reply, Tokens
from xp.episode.tokens import ChatTokens
from xp.spec import Sampling
from xp.worker.played import PlayedEpisode, SampledTask
from xp.worker.token_budget import reply_ids


def task_of(extras: Mapping[str, Any]) -> SampledTask:
    """The task of a row of the data view, as SkyRL's loader passes it to the generator."""
    names = ("task_id", "env", "split", "index", "tools")
    return SampledTask(
        **{name: extras[name] for name in names}, messages=tuple(json.loads(extras["messages"]))
    )


@dataclass
class RunningEpisode:
    """One episode while SkyRL's loop runs it."""

    row: SampledTask
    sample: int
    """Index of the episode among those of its task in this step, from 0."""
    episode: Episode
    prompt_ids: list[int]
    budget: Sampling
    seed: str = ""
    """Seed of the episode: the run's, the step, the task and the sample."""
    prompt: str | None = None
    """The prompt's text as the model reads it; None if the run does not record it."""
    generated: int = 0
    observed: int = 0
    reply_ids: list[int] = field(default_factory=list)
    """Token ids of the environment's reply, which precede the next turn."""
    num_turns: int = 0
    """Number of turns that were requested."""
    is_cut: bool = False
    """True if a token limit ended the last turn."""
    start: Any = None
    """Opening of the session, to be awaited. None before it."""
    token_rows: Rows | None = None
    """Rows of tokens, if a program may rewrite its history."""
    _last_id: int | None = None

    def next_seed(self) -> int:
        """Seed of the next turn, for the request to the engine."""
        words = f"{self.seed}/{self.num_turns}"
        self.num_turns += 1
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:7])

    def wrote(self, ids: Sequence[int], *, is_cut: bool) -> None:
        """Records a turn of the policy."""
        self.is_cut = is_cut
        self._last_id = ids[-1] if ids else None
        self.generated += len(ids)

    def hears(self, reply: Reply, chat: ChatTokens) -> bool:
        """Appends the environment's reply; returns False if it ends the episode (`reply_ids`)."""
        ids = reply_ids(
            chat, self.episode, reply, self.budget.room(self.num_response), self._last_id
        )
        if ids is None:
            return False
        self.reply_ids = ids
        self.observed += len(ids)
        return True

    @property
    def num_response(self) -> int:
        """Number of tokens of the response, including the environment's."""
        if self.token_rows is not None:
            return len(self.token_rows.current.completion_ids)
        return self.generated + self.observed

    def played(self) -> PlayedEpisode:
        """The finished episode, in the form of metrics and trajectories."""
        return PlayedEpisode(self.row, self.sample, self.episode, self.tokens(), self.prompt)

    def tokens(self) -> Tokens:
        if self.token_rows is not None:
            return tokens_of(self.token_rows.all)
        return Tokens(len(self.prompt_ids), self.generated, self.observed)


CURRENT: ContextVar[RunningEpisode | None] = ContextVar("CURRENT", default=None)
"""The episode of the agent loop that runs: each has an asyncio task, hence a context, of its own."""
