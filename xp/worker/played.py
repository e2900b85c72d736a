"""Episodes that a trainer has played: their metrics and their trajectories, the same whatever drove them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from xp.envs.base import Message
from xp.episode.episode import Episode
from xp.episode.metrics import Played
from xp.episode.recorder import Recorder
from xp.episode.trajectory import Tokens, Trajectory, trajectory


class PlayedTask(Protocol):
    """A task as its episode's record names it; a row of the task set is one."""

    @property
    def env(self) -> str: ...
    @property
    def task_id(self) -> str: ...
    @property
    def messages(self) -> tuple[Message, ...]: ...
    @property
    def tools(self) -> str: ...


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode with the tokens that its trainer counted."""

    task: PlayedTask
    sample: int
    """Number among the episodes of this task in this step, from 0."""
    episode: Episode
    tokens: Tokens
    prompt: str | None
    """Prompt as the model read it, where the run keeps prompts."""
    is_lost: bool = False
    """The engine was lost while it was played."""

    def played(self) -> Played:
        """EpisodeResult, as the metrics need it."""
        outcome = self.episode.settle()
        return Played(self.task.env, self.task.task_id, outcome, self.tokens.generated, self.is_lost)

    def trajectory(self, run: str, phase: str, step: int) -> Trajectory:
        """Record of the episode; `step` is the trainer's rollout step, from 0."""
        return trajectory(
            self.episode,
            self.task.messages,
            run=run,
            phase=phase,
            step=step,
            sample=self.sample,
            tools=self.task.tools,
            tokens=self.tokens,
            prompt=self.prompt,
        )


def record(episodes: Iterable[PlayedEpisode], recorder: Recorder, run: str, phase: str, step: int) -> list[Played]:
    """Write the trajectory of each episode; returns what the metrics need of them."""
    found = []
    for one in episodes:
        recorder.write(one.trajectory(run, phase, step))
        found.append(one.played())
    return found
