"""Plays held-out tasks during training, with the current policy, on the engine of the training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.config import During
from xp.backends.trl.worker.generation import EngineOf
from xp.backends.trl.worker.process import Ranks, TrainingProcess
from xp.engines.play import play_each, sample_numbers
from xp.episode.metrics import Played
from xp.tasks.row import TaskRow
from xp.worker.best import BestKeeper, EarlyStop
from xp.worker.evaluate import evaluated_while_training
from xp.worker.played import record


class HeldOutEvaluation:
    """Plays the held-out tasks after the configured steps; every rank plays its share.

    Args:
        process: this process's parts; its config has `during`.
        rows: held-out tasks with prompts that are short enough.
    """

    def __init__(self, process: TrainingProcess, rows: Sequence[TaskRow]) -> None:
        assert process.config.during is not None
        self._process, self._during, self._ranks = process, process.config.during, process.ranks
        self._share = share_of(self._during.rounds.episodes(rows), self._ranks)

    @property
    def patience_s(self) -> int:
        """Largest number of seconds that another rank may take, in addition to its training episodes."""
        return self._share.seconds(self._during)

    def is_due(self, step: int) -> bool:
        """Returns whether the policy is evaluated after this rollout step."""
        return step > 0 and step % self._during.every == 0

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
        process, common = self._process, self._process.config.common
        open_engine = engine(self._during.sampling)
        size = max(1, self._during.batch_size // self._ranks.count)
        rollouts = play_each(open_engine, process.chat, self._share.numbered, process.mix, places=size)
        played: list[Played] = []
        for number, rollout in enumerate(rollouts):
            if number < self._share.num_counted:
                played += record([rollout.record], process.recorder, common.run, "evaluate/during", step)
        everyone = [one for share in self._ranks.gather(played) for one in share]
        reward = evaluated_while_training(common, everyone, step, writes=self._ranks.is_main)
        if self._during.best is not None:
            self._consider(BestKeeper(self._during.best, Path()), step, reward, trainer)

    def _consider(self, keeper: BestKeeper, step: int, reward: float, trainer: Any) -> None:
        """Keeps the model, or stops; the first rank decides for all."""
        is_main = self._ranks.is_main
        (is_better, stop), *_ = self._ranks.gather([_decided(keeper, step, reward) if is_main else (False, None)])[0]
        if is_better:
            if is_main:
                keeper.begin()
            self._ranks.wait()
            if keeper.rule.keeps_model:
                trainer.save_model(str(keeper.staged))  # only adapters, if these are trained; all ranks must call it
            self._ranks.wait()
            if is_main:
                keeper.finish(step, reward)
        elif stop is not None:
            raise EarlyStop(stop)


@dataclass(frozen=True)
class Share:
    """One rank's part of an evaluation."""

    numbered: Sequence[tuple[TaskRow, int]]
    """Each row with the number of its sample."""
    num_counted: int
    """Number of first episodes that count. The others are discarded: ranks that share an engine must play equally
    many."""

    def seconds(self, during: During) -> int:
        """Largest number of seconds of an evaluation."""
        return math.ceil(len(self.numbered) / during.wave_size) * during.wave_s


def _decided(keeper: BestKeeper, step: int, reward: float) -> tuple[bool, str | None]:
    """Returns whether an evaluation is the best so far, and why training stops (None: it continues)."""
    if keeper.is_better(reward):
        return True, None
    stop = keeper.stop(step)
    return False, None if stop is None else str(stop)


def share_of(episodes: Sequence[TaskRow], ranks: Ranks) -> Share:
    """This rank's part of an evaluation, of the same length on all ranks."""
    filled = list(islice(cycle(episodes), math.ceil(len(episodes) / ranks.count) * ranks.count))
    numbered = list(zip(filled, sample_numbers([row.task_id for row in filled]), strict=True))
    num_counted = len(range(ranks.number, len(episodes), ranks.count))
    return Share(numbered[ranks.number :: ranks.count], num_counted)
