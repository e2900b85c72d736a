"""Plays the held-out tasks before, during and after a training, on the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xp.contrib.tinker.worker.rollouts import Players
from xp.episode.metrics import EpisodeFacts
from xp.episode.upload import Recorder
from xp.lib.progress import evaluation_bar
from xp.lib.reading import config_of
from xp.tasks.schedule import evaluated_episodes
from xp.worker.best import BestKeeper, EarlyStop
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.evaluate import RunEvaluation, evaluated_while_training
from xp.worker.engines.play import EpisodePlay, sample_numbers
from xp.worker.played import record, with_group_rewards
from xp.worker.stage import AFTER, BEFORE
from xp.worker.tasks import held_out_tasks
from xp.worker.token_budget import evaluation_sampling, evaluation_seed


class ServiceEvaluation:
    """The evaluations of one training.

    Args:
        players: what all episodes share.
        stage: directory of the train stage.
        file: the evaluate stage's config.
    """

    def __init__(self, players: Players, stage: Path, file: str) -> None:
        self._players = players
        self._spec = players.config.spec
        self._config = config_of(Path(file), EvaluateConfig.from_json)
        self._whole = RunEvaluation(self._config, stage / "episode.json")
        tasks = held_out_tasks(players.config, stage, players.chat)
        episodes = evaluated_episodes(self._spec.evaluation, tasks)
        numbers = sample_numbers([row.task_id for row in episodes])
        self._numbered = list(zip(episodes, numbers, strict=True))

    def is_due(self, step: int) -> bool:
        """Returns whether the policy is evaluated after this rollout step. 0 means before the training."""
        if step == 0:
            return self._whole.is_due(BEFORE)
        every = self._spec.evaluation.every
        return every is not None and step % every == 0

    def play(self, sampler: Any, step: int, save: Callable[[Path], None]) -> None:
        """Plays and records; keeps the model if it is the best so far.

        Args:
            sampler: with the policy's weights.
            step: number of rollout steps that the policy was trained for.
            save: writes the policy's adapters into a directory.

        Raises:
            XpError: (UNHEALTHY) too many episodes are void.
            EarlyStop: no evaluation was better for `evaluation.patience`.
        """
        if step == 0:
            self._whole.add(BEFORE, self._play_model(sampler, BEFORE))
            return
        players = self._players
        opened = self._engine(sampler, f"{self._spec.seed}/{step}")
        played = self._play(opened, players.recorder, "during", step)
        self._end_during(played, step, save)

    def _end_during(
        self, played: Sequence[EpisodeFacts], step: int, save: Callable[[Path], None]
    ) -> None:
        players = self._players
        reward = evaluated_while_training(players.config, played, step)
        keeper = BestKeeper.of(players.config)
        if keeper is None:
            return
        if keeper.is_better(reward):
            staged = keeper.begin()
            if keeper.rule.keep_best:
                save(staged)
            keeper.finish(step, reward, players.chat.end_ids, players.chat.template)
        elif step < players.config.num_steps:
            stop: EarlyStop | None = keeper.stop(step)
            if stop is not None:
                raise stop

    def play_trained(self, sampler: Any, step: int, save: Callable[[Path], None]) -> None:
        """The same for the trained model, unless there is a result; arguments as of `play`.

        An evaluation that is due after the last step is this one: its episodes are played once.
        """
        if not self._whole.is_due(AFTER):
            return
        played = self._play_model(sampler, AFTER)
        # An early stop has evaluated its last step already.
        if step == self._players.config.num_steps and self.is_due(step):
            self._end_during(played, step, save)
        self._whole.add(AFTER, played)

    def _play_model(self, sampler: Any, name: str) -> Sequence[EpisodeFacts]:
        config = self._config
        file = Path(config.stage_dir) / "trajectories" / f"{name}.jsonl"
        with Recorder(file, self._players.mix, config.upload_as, os.environ) as recorder:
            opened = self._engine(sampler, evaluation_seed(self._spec))
            return self._play(opened, recorder, name, 0)

    def _engine(self, sampler: Any, seed: str) -> OpenEngine:
        return self._players.engine(sampler, evaluation_sampling(self._spec), seed)

    def _play(
        self, opened: OpenEngine, recorder: Recorder, name: str, step: int
    ) -> Sequence[EpisodeFacts]:
        players = self._players
        evaluation = self._spec.evaluation
        slots = min(evaluation.batch_size, self._spec.backend.engine.max_sequences)
        played = EpisodePlay(opened, players.chat, self._numbered, players.mix, slots=slots)
        bar = evaluation_bar(f"evaluate {name}", len(self._numbered), played)
        ended = (rollout.record for rollout in bar)
        settled = with_group_rewards(players.mix, ended, evaluation.samples_per_task)
        return record(settled, recorder, self._config.places.run, f"evaluate/{name}", step)
