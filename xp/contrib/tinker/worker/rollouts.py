"""Plays a step's episodes over the service's sampling client, and makes the rows that are trained on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xp.contrib.tinker.worker.batch import Row
from xp.contrib.tinker.worker.engine import ServiceEngine
from xp.contrib.tinker.worker.service import Service, TinkerTrainConfig
from xp.episode.advantages import without_variance
from xp.episode.metrics import EpisodeFacts
from xp.episode.mixture import EnvironmentMixture
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.episode.upload import Recorder
from xp.spec import Sampling
from xp.tasks.curriculum import Curriculum
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.play import EpisodePlay, Rollout, sample_numbers
from xp.worker.played import is_left_out, record


@dataclass(frozen=True)
class ServiceSamples:
    """The episodes of a rollout step."""

    step: int
    """Number of the step that is trained on them, from 0."""
    policy: int
    """Number of rollout steps that the generating policy was trained for."""
    seconds: float
    """Wall-clock time of the episodes."""
    rows: list[Row]
    """Rows with trained tokens."""
    played: list[EpisodeFacts]


@dataclass(frozen=True)
class Players:
    """What all episodes of a run share."""

    config: TinkerTrainConfig
    service: Service
    chat: ChatTokens
    """The policy's tokenizer."""
    mix: EnvironmentMixture
    recorder: Recorder

    def engine(self, sampler: Any, sampling: Sampling, seed: str) -> OpenEngine:
        """Function that opens the engine of a sampling client."""
        chat = self.chat
        is_stop = chat.holds_one_of(sampling.stop)
        return lambda opening: ServiceEngine(
            self.service, sampler, opening, chat.end_ids, sampling, seed, is_stop
        )


class ServiceRollouts:
    """Plays rollout steps; called in a thread.

    Args:
        players: what all episodes share.
        order: tasks of all rollout steps.
        curriculum: draws the tasks of each step. None means those of `order`.
    """

    def __init__(
        self, players: Players, order: Sequence[TaskRow], curriculum: Curriculum | None
    ) -> None:
        self._players = players
        self._order = order
        self._curriculum = curriculum
        self._sampler: Any = None
        self._being_played: EpisodePlay | None = None
        self._is_closed = False

    def update(self, sampler: Any) -> None:
        """Sets the policy of the steps that begin from now on."""
        self._sampler = sampler

    def close(self) -> None:
        """Begins no further step, and ends the current one; may be called from any thread."""
        self._is_closed = True
        if self._being_played is not None:
            self._being_played.end(_ServiceClosed())

    def play(self, step: int, policy: int) -> ServiceSamples:
        """Plays and records the episodes of a step; raises an exception after `close`."""
        began = time.monotonic()
        players = self._players
        spec = players.config.spec
        training = spec.training
        tasks = self._tasks(step)
        rows = [row for row in tasks for _ in range(training.group_size)]
        numbered = list(zip(rows, sample_numbers([row.task_id for row in rows]), strict=True))
        self._being_played = EpisodePlay(
            players.engine(self._sampler, training, f"{spec.seed}/{step}"),
            players.chat,
            numbered,
            players.mix,
            spec.backend.engine.max_sequences,
            training.group_size,
            Overlong.of(spec),
        )
        if self._is_closed:  # `close` may have come before it could see this step
            raise _ServiceClosed
        rollouts = list(self._being_played)
        episodes = (rollout.record for rollout in rollouts)
        run = players.config.places.run
        played = record(episodes, players.recorder, run, "train", step)
        return ServiceSamples(step, policy, time.monotonic() - began, self._rows(rollouts), played)

    def _tasks(self, step: int) -> Sequence[TaskRow]:
        if self._curriculum is not None:
            return self._curriculum.tasks(step)
        size = self._players.config.spec.training.prompts_per_step
        return self._order[step * size : (step + 1) * size]

    def _rows(self, rollouts: Sequence[Rollout]) -> list[Row]:
        """The rows that have trained tokens, of episodes that are not left out."""
        algorithm = self._players.config.spec.algorithm
        size = self._players.config.spec.training.group_size
        rewards = [rollout.outcome.reward for rollout in rollouts]
        groups = [str(number // size) for number in range(len(rollouts))]
        is_flat = without_variance(rewards, groups)
        rows = []
        for number, rollout in enumerate(rollouts):
            if algorithm.zero_variance_filter and is_flat[number]:
                continue
            if is_left_out(rollout.outcome, algorithm):
                continue
            rows += [
                Row([*talk.prompt_ids, *talk.completion_ids], talk.logprobs, talk.mask, number)
                for talk in rollout.conversations
                if any(talk.mask)
            ]
        return rows


class _ServiceClosed(Exception):
    """The episodes are not needed any more."""
