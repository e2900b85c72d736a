"""Plays rollout steps in a thread while the trainer updates the policy (`training.max_staleness`).

Each step is played with the weights of one policy: weights change only between steps. TRL's experimental
AsyncGRPOTrainer is not used: it has its own tool loop instead of Episodes, sends weights during episodes, and lacks
void episodes and the spec's clipping and KL penalty.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xp.backends.trl.worker.checkpoints import FORM
from xp.backends.trl.worker.held_out import HeldOutEvaluation
from xp.backends.trl.worker.process import TrainingProcess
from xp.backends.trl.worker.rollout import Rollouts, StepSamples
from xp.lib.atomic import write_atomically
from xp.lib.codec import decode
from xp.tasks.curriculum import Curriculum
from xp.tasks.row import TaskRow
from xp.worker.engines.play import EpisodePlay
from xp.worker.rollout_thread import RolloutThread


class AsyncRollouts(Rollouts):
    """TRL's `rollout_func` with steps that a thread plays ahead, and its callback that keeps them in each checkpoint.

    Args:
        process: this process's parts.
        order: tasks of all rollout steps.
        held_out: evaluations before, during and after training. None means that nothing is held out.
        curriculum: draws the tasks of each step. None means those of `order`.
    """

    def __init__(
        self,
        process: TrainingProcess,
        order: Sequence[TaskRow],
        held_out: HeldOutEvaluation | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        super().__init__(process, order, held_out, curriculum)
        max_staleness = self._config.spec.training.max_staleness
        self._ahead = RolloutThread(
            self._play_ahead, max_staleness, self._config.num_steps, self._ranks.gather
        )
        self._trainer: Any = None
        self._being_played: EpisodePlay | None = None
        self._is_closed = False

    def close(self) -> None:
        """Begins no further step, and ends the current one."""
        self._is_closed = True
        if self._being_played is not None:
            self._being_played.end(_Closed())
        self._ahead.close()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Trainer's hook: writes the steps that were played ahead too, one file per process, before Seal."""
        super().on_save(args, state, control)
        played = [asdict(group) for group in self._ahead.all_played()]
        checkpoint = Path(args.output_dir) / FORM.format(state.global_step)
        write_atomically(self._file(checkpoint), json.dumps(played) + "\n")

    def resume(self, checkpoint: Path) -> None:
        """Restores the steps in a checkpoint too; raises ValueError for a file that `on_save` did not write."""
        super().resume(checkpoint)
        file = self._file(checkpoint)
        played = decode(list[StepSamples], file.read_text()) if file.exists() else []
        self._ahead.resume({step.step: step for step in played})

    def _file(self, checkpoint: Path) -> Path:
        return checkpoint / f"played_ahead.rank_{self._ranks.number}.json"

    def _samples(self, rows: Sequence[TaskRow], step: int, trainer: Any) -> StepSamples:
        self._trainer = trainer
        is_due = self._held_out is not None and self._held_out.is_due(step)
        evaluate = (lambda: self._evaluate(step)) if is_due else None
        samples = self._ahead.take(step, lambda: self._generation.update(trainer), evaluate)
        assert [episode.task_id for episode in samples.played] == [row.task_id for row in rows], (
            "TRL gave other prompts"
        )
        return samples

    def _begun(self, play: EpisodePlay) -> None:
        self._being_played = play
        if self._is_closed:
            play.end(_Closed())

    def _evaluate(self, step: int) -> None:
        assert self._held_out is not None
        with self._generation.engine(self._trainer) as engine:
            self._held_out.play(engine, step, self._trainer)

    def _play_ahead(self, step: int, policy: int) -> StepSamples:
        """Plays this process's share of a step, before TRL requests it."""
        with self._generation.engine(self._trainer) as engine:
            return self._play(engine, self._numbered(step), step, policy)


class _Closed(Exception):
    """The episodes are not needed any more."""
