"""Plays held-out tasks before, during and after training, with the current policy, on the engine of the training."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.generation import EngineOf
from xp.backends.trl.worker.process import Ranks, TrainingProcess
from xp.episode.metrics import EpisodeFacts
from xp.episode.upload import Recorder
from xp.lib.progress import evaluation_bar
from xp.tasks.row import TaskRow
from xp.tasks.schedule import evaluated_tasks
from xp.worker.best import BestKeeper, EarlyStop
from xp.worker.engines.config import EvaluateConfig
from xp.worker.engines.conversation import OpenEngine
from xp.worker.engines.evaluate import RunEvaluation, evaluated_while_training
from xp.worker.engines.play import EpisodePlay
from xp.worker.played import record, with_group_rewards
from xp.worker.stage import AFTER, BEFORE
from xp.worker.token_budget import evaluation_sampling, evaluation_seed


class HeldOutEvaluation:
    """Plays the held-out tasks before and after the training, and after the configured steps.

    Every rank plays its share.

    Args:
        process: this process's parts.
        config: input of the evaluate stage, which would play the same episodes before and after.
        episodes: `episode.json` of the training.
        rows: held-out tasks with prompts that are short enough.
    """

    def __init__(
        self,
        process: TrainingProcess,
        config: EvaluateConfig,
        episodes: Path,
        rows: Sequence[TaskRow],
    ) -> None:
        self._process = process
        self._config = config
        self._ranks = process.ranks
        self._limits = [member.limits for member in config.spec.env.members.values()]
        self._whole = RunEvaluation(config, episodes)
        self._due = [name for name in config.models if self._whole.is_due(name)]
        self._tasks = evaluated_tasks(config.spec.evaluation, rows)
        self._numbered, self._num_counted = share_of(
            self._tasks, config.spec.evaluation.samples_per_task, self._ranks
        )
        self._num_slots = max(1, config.spec.evaluation.batch_size // self._ranks.count)

    @property
    def deadline_s(self) -> int:
        """Largest number of seconds that another rank may take, in addition to its training episodes."""
        wave_size = min(self._num_slots, *(limit.max_sessions for limit in self._limits))
        wave_s = math.ceil(max(limit.episode_timeout_s for limit in self._limits))
        return math.ceil(len(self._numbered) / wave_size) * wave_s

    def is_due(self, step: int) -> bool:
        """Returns whether the policy is evaluated after this rollout step. 0 means before the training."""
        if step == 0:
            return BEFORE in self._due
        every = self._config.spec.evaluation.every
        return every is not None and step % every == 0

    def play(self, engine: EngineOf, step: int, trainer: Any) -> None:
        """Plays, records, writes the metrics, and keeps the model if it is the best so far.

        Args:
            engine: opens the engine with the policy.
            step: number of rollout steps that the policy was trained for.
            trainer: TRL's trainer, which writes the policy.

        Raises:
            XpError: too many episodes are void (UNHEALTHY).
            EarlyStop: no evaluation was better for `evaluation.patience`.
        """
        if step == 0:
            played = self._play_model(engine, BEFORE)
            self._whole.add(BEFORE, played, writes=self._ranks.is_main)
        else:
            self._play_during(engine, step, trainer)
        self._process.log.begin_step()

    def _play_during(self, engine: EngineOf, step: int, trainer: Any) -> None:
        process = self._process
        spec = self._config.spec
        opened = engine(evaluation_sampling(spec), f"{spec.seed}/{step}")
        self._end_during(self._play(opened, process.recorder, "during", step), step, trainer)

    def _end_during(self, played: Sequence[EpisodeFacts], step: int, trainer: Any) -> None:
        config = self._process.config
        reward = evaluated_while_training(config, played, step, writes=self._ranks.is_main)
        keeper = BestKeeper.of(config)
        if keeper is not None:
            self._consider(keeper, step, reward, trainer)

    def play_trained(self, engine: EngineOf, trainer: Any) -> None:
        """The same for the trained model, unless there is a result; raises XpError as `play` does.

        An evaluation that is due after the last step is this one: its episodes are played once.
        """
        if AFTER not in self._due:
            return
        played = self._play_model(engine, AFTER)
        config = self._process.config
        step = config.rollout_steps(trainer.state.global_step)
        # An early stop has evaluated its last step already.
        if step == config.num_steps and self.is_due(step):
            self._end_during(played, step, trainer)
        self._whole.add(AFTER, played, writes=self._ranks.is_main)

    def _play_model(self, engine: EngineOf, name: str) -> list[EpisodeFacts]:
        common = self._config
        spec = self._config.spec
        file = Path(common.stage_dir) / "trajectories" / f"{name}{self._ranks.suffix}.jsonl"
        opened = engine(evaluation_sampling(spec), evaluation_seed(spec))
        with Recorder(file, self._process.mix, common.upload_as, os.environ) as recorder:
            return self._play(opened, recorder, name, 0)

    def _play(
        self, opened: OpenEngine, recorder: Recorder, name: str, step: int
    ) -> list[EpisodeFacts]:
        """The episodes of all ranks, in the order of the tasks."""
        process = self._process
        run = self._config.places.run
        numbered = self._numbered
        played = EpisodePlay(opened, process.chat, numbered, process.mix, slots=self._num_slots)
        bar = evaluation_bar(
            f"evaluate {name}", len(numbered), played, is_shown=self._ranks.is_main
        )
        rollouts = iter(bar)
        counted = (rollout.record for rollout in islice(rollouts, self._num_counted))
        samples = self._config.spec.evaluation.samples_per_task
        episodes = with_group_rewards(process.mix, counted, samples)
        recorded = record(episodes, recorder, run, f"evaluate/{name}", step)
        for _ in rollouts:  # those that do not count
            pass
        shares = list(map(iter, self._ranks.gather(recorded)))
        return [
            next(shares[number % len(shares)])
            for _ in range(samples)
            for number in range(len(self._tasks))
        ]

    def _consider(self, keeper: BestKeeper, step: int, reward: float, trainer: Any) -> None:
        """Keeps the model, or stops; the first rank decides for all."""
        is_main = self._ranks.is_main
        (is_better, stop), *_ = self._ranks.gather(
            [self._decided(keeper, step, reward) if is_main else (False, None)]
        )[0]
        if is_better:
            if is_main:
                keeper.begin()
            self._ranks.wait()
            if keeper.rule.keep_best:
                # Only adapters, if these are trained; all ranks must call it.
                trainer.save_model(str(keeper.staged))
            self._ranks.wait()
            if is_main:
                chat = self._process.chat
                keeper.finish(step, reward, chat.end_ids, chat.template)
        elif stop is not None:
            raise EarlyStop(stop)

    def _decided(self, keeper: BestKeeper, step: int, reward: float) -> tuple[bool, str | None]:
        """Returns whether an evaluation is the best so far, and why training stops before its last step (None: it
        continues)."""
        if keeper.is_better(reward):
            return True, None
        stop = None if step == self._process.config.num_steps else keeper.stop(step)
        return False, None if stop is None else str(stop)


def share_of(
    tasks: Sequence[TaskRow], samples: int, ranks: Ranks
) -> tuple[list[tuple[TaskRow, int]], int]:
    """This rank's part of an evaluation: whole tasks, since their episodes may be a group.

    Returns:
        Each row with the number of its sample (every task once, then every task again), and the number of first
        episodes that count. The others are discarded: ranks that share an engine must play equally many.
    """
    share = tasks[ranks.number :: ranks.count]
    numbered = [(row, sample) for sample in range(samples) for row in share]
    num_counted = len(numbered)
    if len(share) < math.ceil(len(tasks) / ranks.count):
        numbered += [(tasks[0], samples + number) for number in range(samples)]
    return numbered, num_counted
