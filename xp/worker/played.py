"""Episodes that a trainer plays: prompts of live sessions, metrics and trajectories, the same for every trainer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xp.envs.base import PROMPT_LENGTH, Message
from xp.episode.episode import Episode
from xp.episode.metrics import EpisodeFacts
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus, Tokens
from xp.episode.tokens import ChatTokens, TemplateFault, TooManyPictures
from xp.episode.trajectory import Trajectory, trajectory
from xp.episode.upload import Recorder
from xp.lib.nested import grouped
from xp.spec import Algorithm
from xp.tasks.row import TaskRow


@dataclass(frozen=True)
class SampledTask:
    """The task of a trainer's sample, with the fields that its view of the tasks has."""

    task_id: str
    env: str
    split: str
    index: int
    tools: str
    """JSON list of function schemas."""
    messages: tuple[Message, ...]
    """The opening ones."""

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> SampledTask:
        """The task of a row of a trainer's view, whose messages are JSON."""
        names = ("task_id", "env", "split", "index", "tools")
        messages = tuple(json.loads(columns["messages"]))
        return cls(**{name: columns[name] for name in names}, messages=messages)


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode that has ended, with its token counts."""

    task: SampledTask | TaskRow
    sample: int
    """Index among the episodes of this task in this step, from 0."""
    episode: Episode
    tokens: Tokens | None
    """None means that an API did not count them, of which no metrics are made."""
    prompt: str | None
    """The model's exact prompt; None if the run does not keep prompts."""
    extra: Mapping[str, Any] | None = None
    """Further entries of its record."""

    @property
    def outcome(self) -> EpisodeResult:
        """The settled result."""
        return self.episode.settle()

    def played(self) -> EpisodeFacts:
        """The fields that the metrics need."""
        assert self.tokens is not None
        episode = self.episode
        return EpisodeFacts(
            self.task.env,
            self.task.task_id,
            self.outcome,
            self.tokens.generated,
            self.tokens.prompt + self.tokens.observed,
            episode.started_at,
            episode.elapsed_s,
            episode.num_sampled,
        )

    def trajectory(self, run: str, phase: str, step: int) -> Trajectory:
        """The record of the episode; `step` is the trainer's rollout step, from 0."""
        return trajectory(
            self.episode,
            run=run,
            phase=phase,
            step=step,
            sample=self.sample,
            tools=self.task.tools,
            tokens=self.tokens,
            prompt=self.prompt,
            extra=self.extra,
        )


def is_left_out(outcome: EpisodeResult, algorithm: Algorithm) -> bool:
    """Returns whether an episode is not trained on: a void one, and by `mask_truncated` a truncated one."""
    is_truncated = outcome.status is EpisodeStatus.TRUNCATED
    return outcome.status is EpisodeStatus.VOID or (is_truncated and algorithm.mask_truncated)


def with_group_rewards(
    mix: EnvironmentMixture, episodes: Iterable[PlayedEpisode], samples_per_task: int
) -> Iterable[PlayedEpisode]:
    """The episodes of an evaluation, in their order, with the rewards of their groups: the episodes of one task.

    With one episode of each task, they are yielded as they end, and keep their own rewards.
    """
    if samples_per_task == 1:
        return episodes
    episodes = list(episodes)
    groups = grouped(
        (episode.task.task_id, episode.episode)
        for episode in episodes
        if mix.scores_groups(episode.task.env)
    )
    for scoring in [mix.score_group(group) for group in groups.values()]:
        scoring.result()
    return episodes


def live_prompt(
    episode: Episode, tools: str, chat: ChatTokens, max_tokens: int
) -> list[int] | None:
    """Opens an episode's session and returns its prompt as token ids. None means that the episode is void, and is not
    played.

    Args:
        episode: one with `prompt: live`.
        tools: JSON list of the task's tools.
        chat: the policy's tokenizer.
        max_tokens: longest prompt, in tokens.
    """
    PROMPT_LENGTH.set(lambda messages, tools: len(chat.prompt(messages, tools)))
    episode.start()
    if episode.is_over:
        return None
    try:
        length = chat.prompt_length(episode.opening, tools, max_tokens)
        if length is not None and length <= max_tokens:
            return chat.prompt(episode.opening, tools)
        size = f"over {2 * max_tokens}" if length is None else length
        episode.give_up(
            f"PromptTooLong: the session's prompt has {size} tokens, more than training.max_prompt_tokens={max_tokens}"
        )
    except TooManyPictures as fault:
        episode.give_up(f"TooManyPictures: {fault}")
    except TemplateFault as fault:
        episode.give_up(
            f"TemplateFault: the chat template does not render the session's prompt: {fault.reason}"
        )
    return None


def record(
    episodes: Iterable[PlayedEpisode], recorder: Recorder, run: str, phase: str, step: int
) -> list[EpisodeFacts]:
    """Writes the trajectory of each episode; returns the episodes for the metrics."""
    played = []
    for episode in episodes:
        recorder.write(episode.trajectory(run, phase, step))
        played.append(episode.played())
    return played
