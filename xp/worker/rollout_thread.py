"""Plays rollout steps in a thread, up to a number of steps ahead of the updates (`training.max_staleness`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

S = TypeVar("S")
Gather = Callable[[Sequence[bool]], Sequence[Sequence[bool]]]
"""Function that returns the values of all training processes, which call it at the same time."""


def alone(values: Sequence[bool]) -> Sequence[Sequence[bool]]:
    """The values of a training in one process."""
    return [values]


class RolloutThread(Generic[S]):
    """A thread that plays rollout steps in order, up to a number of steps ahead.

    Args:
        play: plays a step; its arguments are the step's number, from 0, and the number of steps that the policy was
            trained for.
        max_staleness: largest number of rollout steps between that policy and the one that is updated.
        num_steps: number of steps of the training.
        gather: of the training processes, each with such a thread; they call `take` at the same time.
    """

    def __init__(
        self,
        play: Callable[[int, int], S],
        max_staleness: int,
        num_steps: int,
        gather: Gather = alone,
    ) -> None:
        self._play = play
        self._max_staleness = max_staleness
        self._num_steps = num_steps
        self._gather = gather
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
        if all(is_idle for (is_idle,) in self._gather([is_idle])):
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
