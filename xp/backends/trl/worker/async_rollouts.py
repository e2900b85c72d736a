"""Plays rollout steps in a thread while the trainer updates the policy (`training.max_staleness`).

Each step is played with the weights of one policy: weights change only between steps. TRL's experimental
AsyncGRPOTrainer is not used: it has its own tool loop instead of Episodes, sends weights during episodes, and lacks
void episodes and the spec's clipping and KL penalty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from xp.backends.trl.worker.held_out import HeldOutEvaluation
from xp.backends.trl.worker.process import Ranks, TrainingProcess
from xp.backends.trl.worker.rollout import Rollouts, StepSamples
from xp.lib.atomic import write_atomically
from xp.lib.codec import decode
from xp.tasks.curriculum import Curriculum
from xp.tasks.row import TaskRow
from xp.worker.engines.play import EpisodePlay

S = TypeVar("S")


class RolloutThread(Generic[S]):
    """A thread that plays rollout steps in order, up to a number of steps ahead.

    Args:
        play: plays a step; its arguments are the step's number, from 0, and the number of steps that the policy was
            trained for.
        max_staleness: largest number of rollout steps between that policy and the one that is updated.
        num_steps: number of steps of the training.
        ranks: the training processes, each with such a thread; they call `take` at the same time.
    """

    def __init__(
        self, play: Callable[[int, int], S], max_staleness: int, num_steps: int, ranks: Ranks
    ) -> None:
        self._play = play
        self._max_staleness = max_staleness
        self._num_steps = num_steps
        self._ranks = ranks
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="xp-ahead")
        self._steps: dict[int, Future[S]] = {}
        """Steps that are played, or will be with the engine's weights, until they are taken."""
        self._next = 0
        """First step that is not among them."""
        self._policy: int | None = None
        """Number of steps that the engine's policy was trained for."""
        self._fault: BaseException | None = None

    def take(
        self, step: int, update: Callable[[], None], meanwhile: Callable[[], None] | None = None
    ) -> S:
        """Waits for the episodes of a step and returns them; raises the exception of the playing thread.

        Args:
            step: number of the step.
            update: sends the trainer's weights to the engine; called while no process plays.
            meanwhile: plays something else with these weights, before any process continues.
        """
        if self._policy is None:
            self._next = max(self._steps, default=step - 1) + 1
        self._hold_after(step)
        wait(
            [self._steps[step]]
            if step in self._steps and meanwhile is None
            else self._steps.values()
        )
        if step in self._steps:
            self._steps[step].result()
        is_idle = all(task.done() for task in self._steps.values())
        if all(is_idle for (is_idle,) in self._ranks.gather([is_idle])):
            update()
            if meanwhile is not None:
                meanwhile()
            self._policy = step  # only now may the thread begin
        self._begin()
        return self._steps.pop(step).result()

    def all_played(self) -> list[S]:
        """All steps that were played ahead; waits for the next step's episodes."""
        self._hold_after((self._policy or 0) + 1)
        wait(self._steps.values())
        played = [
            task.result() for _, task in sorted(self._steps.items()) if task.exception() is None
        ]
        self._begin()
        return played

    def resume(self, played: Mapping[int, S]) -> None:
        """Sets these steps as played; must be called before the first `take`."""
        for step, samples in played.items():
            self._steps[step] = Future()
            self._steps[step].set_result(samples)

    def close(self) -> None:
        """Begins no further step, and waits for the current one."""
        self._pool.shutdown(cancel_futures=True)

    def _hold_after(self, last: int) -> None:
        """Takes back the steps after `last` that have not begun."""
        for step in sorted(self._steps, reverse=True):
            if step > last and self._steps[step].cancel():
                del self._steps[step]
                self._next = step

    def _begin(self) -> None:
        """Lets the thread play the next steps, within the limit of staleness."""
        policy = self._policy
        if policy is not None:
            end = min(policy + self._max_staleness + 1, self._num_steps)
            for step in range(self._next, end):
                self._steps[step] = self._pool.submit(self._played, step, policy)
            self._next = max(self._next, end)

    def _played(self, step: int, policy: int) -> S:
        if self._fault is not None:
            raise self._fault
        try:
            return self._play(step, policy)
        except BaseException as error:
            self._fault = error
            raise


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
            self._play_ahead, max_staleness, self._config.num_steps, self._ranks
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
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        write_atomically(self._file(checkpoint), json.dumps(played) + "\n")

    def resume(self, checkpoint: Path) -> None:
        """Restores the steps in a checkpoint too; raises ValueError for a file that `on_save` did not write."""
        super().resume(checkpoint)
        file = self._file(checkpoint)
        if file.exists():
            played = decode(list[StepSamples], file.read_text())
        else:
            played = []
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
