"""One evaluation of inspect_ai that lasts as long as the provider; each session adds one sample."""

from __future__ import annotations

import asyncio
import contextvars
import tempfile
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from inspect_ai import SampleSource, Task, enqueue_sample, eval_async, task_with
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalSample
from inspect_ai.model import Model, get_model
from inspect_ai.util._display import init_display_type

from xp.contrib.conversation import ModelRequest
from xp.contrib.inspect.model import POLICY, conversations
from xp.envs.base import EnvUnavailable
from xp.envs.loop import run

START_S: Final = 240.0
CLOSE_S: Final = 8.0
Key = tuple[int | str, int]
"""Id and epoch of a sample in the evaluation; a repeated sample has another epoch."""


class InspectEvaluation:
    """The evaluation, which starts with the first sample.

    Args:
        task: task of inspect_ai.
        roles: models by role.
        at_once: largest number of samples at the same time.
        max_turns: largest number of the model's messages in one sample; the sample is then scored.
    """

    def __init__(
        self, task: Task, roles: Mapping[str, Model], at_once: int, max_turns: int
    ) -> None:
        self._task = task
        self._roles = roles
        self._at_once = at_once
        self._max_turns = max_turns
        self._epochs: Counter[int | str] = Counter()
        self._source: _Source | None = None
        self._running: asyncio.Future[Any] | None = None

    def play(
        self, sample: Sample, questions: asyncio.Queue[ModelRequest]
    ) -> tuple[Key, asyncio.Future[EvalSample]]:
        """Adds a sample, on the loop's thread; the future gets inspect_ai's log of it. Raises EnvUnavailable."""
        if self._running is None:
            self._begin()
        assert self._running is not None
        assert self._source is not None
        if self._running.done():
            raise EnvUnavailable(f"inspect_ai's evaluation has ended: {self._running.exception()}")
        assert sample.id is not None
        self._epochs[sample.id] += 1
        key = (sample.id, self._epochs[sample.id])
        conversations.expect(key, questions, self._max_turns)
        return key, self._source.add(key, sample.model_copy(deep=True))

    def close(self) -> None:
        if self._running is not None:
            run(self._end(), CLOSE_S)

    def _begin(self) -> None:
        init_display_type("none")
        self._source = _Source()
        self._folder = tempfile.TemporaryDirectory(prefix="xp-inspect-")
        work = eval_async(
            task_with(self._task, dataset=self._source),
            model=get_model(POLICY, at_once=self._at_once),
            model_roles=dict(self._roles),
            epochs=1,
            fail_on_error=False,
            max_samples=self._at_once,
            log_dir=self._folder.name,
            log_realtime=False,
            score_display=False,
            acp_server=False,
            ctl_server=False,
        )
        self._running = asyncio.ensure_future(work)
        self._running.add_done_callback(self._source.ended)

    async def _end(self) -> None:
        assert self._source is not None
        assert self._running is not None
        self._source.finish()
        done, _ = await asyncio.wait({self._running}, timeout=CLOSE_S / 2)
        if not done:
            self._running.cancel()
        self._folder.cleanup()


class _Source(SampleSource):  # type: ignore[misc]
    """Source of the sessions' samples; see inspect_ai.SampleSource."""

    def __init__(self) -> None:
        self._context: contextvars.Context | None = None
        self._added: list[tuple[Key, Sample]] = []
        self._woken = asyncio.Event()
        self._is_waiting = True
        self._is_over = False
        self._results: dict[Key, asyncio.Future[EvalSample]] = {}

    def add(self, key: Key, sample: Sample) -> asyncio.Future[EvalSample]:
        """Begins a sample now, even while others are played."""
        done = self._results[key] = asyncio.get_running_loop().create_future()
        if self._is_waiting:
            self._added.append((key, sample))
            self._woken.set()
        else:
            assert self._context is not None
            self._context.run(enqueue_sample, sample, epoch=key[1])
        return done

    def finish(self) -> None:
        """Ends the evaluation after the last sample."""
        self._is_over = True
        self._woken.set()

    def ended(self, running: asyncio.Future[Any]) -> None:
        """Fails the samples that are still waited for; called at the end of the evaluation."""
        error = None if running.cancelled() else running.exception()
        for done in self._results.values():
            if not done.done():
                done.set_exception(EnvUnavailable(f"inspect_ai's evaluation has ended: {error}"))

    def initial_samples(self) -> list[Sample]:
        return []

    async def next_samples(self) -> list[Sample] | None:
        """Waits for new samples; called when no sample is played."""
        self._context = contextvars.copy_context()
        self._is_waiting = True
        while not self._added and not self._is_over:
            self._woken.clear()
            await self._woken.wait()
        self._is_waiting = False
        added = self._added
        self._added = []
        for key, sample in added:
            enqueue_sample(sample, epoch=key[1])
        return [] if added else None

    async def sample_complete(self, sample: EvalSample) -> None:
        done = self._results.pop((sample.id, sample.epoch), None)
        if done is not None and not done.done():
            done.set_result(sample)
