"""SkyRL's fully asynchronous trainer with xp's parts: groups are generated while the policy is updated with others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer

from xp.backends.skyrl.worker.checkpoints import FORM
from xp.backends.skyrl.worker.trainer import XpTrainer, episode_totals
from xp.episode.advantages import differ
from xp.lib.patching import replaced
from xp.spec.training import Unfinished
from xp.worker.played import PlayedEpisode
from xp.worker.trained import never_filled

OF_ROLLOUT = "rollout_is"
"""Name of a loss that SkyRL accepts in this trainer."""


class AsyncTrainer(XpTrainer, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """An XpTrainer that plays the groups of the next steps while it trains on those of this one.

    SkyRL trains on the groups that end first, so that a slow one may be older than `training.max_staleness`. Here a
    step has the groups of xp's order: SkyRL begins at most `max_staleness` steps ahead, so no group is older.

    SkyRL refuses losses with a ratio to log-probabilities that it computes itself, since the generating policy does
    not exist any more then. Here the ratio is to the policy before the update, and the importance correction, which a
    plan must enable, is the weight between that policy and the generating one (decoupled clipping, arXiv:2110.00641).
    """

    generator: Any
    async_train_dataloader: Any
    global_step: int

    def __init__(self, *xp_parts: Any, **parts: Any) -> None:
        with replaced(parts["cfg"].trainer.algorithm, policy_loss_type=OF_ROLLOUT):
            super().__init__(*xp_parts, **parts)
        self._played: dict[int, list[PlayedEpisode]] = {}
        """Episodes by the identity of the generator's output, which SkyRL keeps until it is trained on."""
        self._running = _Running()
        self.generator = _RecordingGenerator(self.generator, self._played, self._running)
        self._checkpointed = self._exported = 0
        """Steps of the last checkpoint and of the last Hugging Face model."""
        self._begun: deque[str] = deque()
        """Uids of the groups that have begun and are not trained on, in their order."""
        self._ended: dict[str, Any] = {}
        """Groups that have ended before it was their turn, by uid."""
        self.async_train_dataloader = _InTurn(
            self.async_train_dataloader, self._staleness_manager, self._begun, self._running
        )

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        """Makes a loader of one prompt at a time: a group begins when another one has ended."""
        trainer = self.cfg.trainer
        self.train_dataloader = self._ordered_loader(1)
        self.num_steps_per_epoch = len(self.train_dataloader) // trainer.train_batch_size
        steps = self.num_steps_per_epoch * trainer.epochs
        self.total_training_steps = min(steps, trainer.max_training_steps or steps)

    def build_models(self, *workers: Any) -> None:
        super().build_models(*workers)
        if self._spec.training.unfinished is Unfinished.WAIT:
            transfer = self.dispatch.save_weights_for_sampler

            async def between_groups(*args: Any, **kwargs: Any) -> None:
                async with self._running.none():
                    await transfer(*args, **kwargs)

            self.dispatch.save_weights_for_sampler = between_groups

    def load_checkpoints(self) -> Any:
        """Counts the steps by the trained tasks: the last checkpoint of SkyRL alone has one step too many."""
        step, path, consumed, dropped, epoch = super(XpTrainer, self).load_checkpoints()
        if consumed is not None:
            step = (len(consumed) - len(dropped)) // self.cfg.trainer.train_batch_size
        if step == self.total_training_steps:
            # With dynamic sampling, the loader has tasks for another step.
            self.cfg.trainer.epochs = 0
        self._checkpointed = step
        self.tracker.continue_after(step)
        return step, path, consumed, dropped, epoch

    def save_checkpoints(self) -> str:
        """Saves a step's checkpoint once; SkyRL saves the last one again after the training, as the step after it."""
        with self._trained_step() as step:
            if step == self._checkpointed:
                return str(Path(self.cfg.trainer.ckpt_path, FORM.format(step)))
            checkpoint = str(super().save_checkpoints())
        self._checkpointed = step
        return checkpoint

    def save_models(self) -> None:
        with self._trained_step() as step:
            if step == self._exported:
                return
            super().save_models()
        self._exported = step

    @contextmanager
    def _trained_step(self) -> Iterator[int]:
        """Context manager: SkyRL's step is the one whose weights these are, after the training too."""
        step = min(self.global_step, self.cfg.trainer.max_training_steps)
        with replaced(self, global_step=step):
            yield step

    async def _collect_generation_mini_batch(
        self, generation_output_group_buffer: Any, all_generators_done: Any
    ) -> tuple[list[Any], list[Any], bool]:
        """Returns the next step's groups, the first in order that dynamic sampling keeps, and logs all of them.

        SkyRL is told of no dropped group, since xp's metrics have them, and of no end of the epoch.

        Raises:
            XpError: (UNHEALTHY) too many episodes are void; (NOT_TRAINED) the step has played all the groups that it
                may, and is not full.
        """
        algorithm = self._spec.algorithm
        size = self.mini_batch_size
        groups: list[Any] = []
        ended: list[Any] = []
        """Groups that are not logged."""
        num_ended = 0
        slowest = 0.0
        while len(groups) < size:
            if not self._begun or self._begun[0] not in self._ended:
                group = await generation_output_group_buffer.get()
                self._ended[group.uid] = group
                continue
            group = self._ended.pop(self._begun.popleft())
            ended.append(group)
            num_ended = num_ended + 1
            slowest = max(slowest, group.group_completion_time_s)
            rewards = [
                reward for reward in episode_totals(group.generator_output) if reward is not None
            ]
            if not algorithm.dynamic_sampling or differ(rewards):
                groups.append(group)
            else:
                # Another group may begin in its place, and a resumed run does not play this one again.
                await self._staleness_manager.on_rollout_filtered()
                await self.async_train_dataloader.mark_filtered_uids([group.uid])
            if num_ended == algorithm.max_sample_batches * size and len(groups) < size:
                await asyncio.to_thread(self._log, ended, slowest)
                raise never_filled(len(groups), size, num_ended)
            if (
                len(ended) == 2 * size
            ):  # The share of void episodes is that of a step's groups or more.
                await asyncio.to_thread(self._log, ended[:size], 0.0)
                del ended[:size]
        await asyncio.to_thread(self._log, ended, slowest)
        return groups, [], False

    def _log(self, groups: Sequence[Any], rollout_s: float) -> None:
        episodes = [
            episode for group in groups for episode in self._played.pop(id(group.generator_output))
        ]
        self.tracker.episodes(episodes, self.global_step, rollout_s)


class _Running:
    """The number of groups that are played, which a transfer of weights may wait for."""

    def __init__(self) -> None:
        self._number = 0
        self._is_closed = False
        self._changed = asyncio.Condition()

    async def begin(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_closed)
            self._number += 1

    async def end(self) -> None:
        async with self._changed:
            self._number -= 1
            self._changed.notify_all()

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Context manager: begins when all groups have ended; none begins within."""
        async with self._changed:
            self._is_closed = True
            await self._changed.wait_for(lambda: not self._number)
        try:
            yield
        finally:
            async with self._changed:
                self._is_closed = False
                self._changed.notify_all()


class _InTurn:
    """SkyRL's loader of prompts for its generating workers: one worker at a time takes a prompt and waits for its slot.

    In SkyRL several wait, so that a later prompt may begin before an earlier one.

    Args:
        loader: SkyRL's loader.
        manager: SkyRL's manager of slots; its own call for a slot does nothing any more.
        begun: is filled with the uids of the prompts.
        running: counts their groups.
    """

    def __init__(self, loader: Any, manager: Any, begun: deque[str], running: _Running) -> None:
        self._loader = loader
        self._begun = begun
        self._running = running
        self._take_slot = manager.acquire_submission_slot
        manager.acquire_submission_slot = _nothing
        self._turn = asyncio.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    async def get_next_non_consumed_data(self) -> Any:
        """Returns the next prompt when it has its slot, or None after the last one."""
        async with self._turn:
            prompts = await self._loader.get_next_non_consumed_data()
            if prompts is not None:
                await self._take_slot()
                await self._running.begin()
                self._begun.append(prompts[0]["uid"])
        return prompts


async def _nothing() -> None:
    """Does nothing: the worker has its slot."""


class _RecordingGenerator:
    """A generator that stores the episodes of each training output.

    Args:
        generator: xp's generator.
        played: mapping for the episodes.
        running: counts the groups that have begun.
    """

    def __init__(
        self, generator: Any, played: dict[int, list[PlayedEpisode]], running: _Running
    ) -> None:
        self._generator = generator
        self._played = played
        self._running = running

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        """Plays a group."""
        try:
            output = await self._generator.generate(input_batch, disable_tqdm=disable_tqdm)
        finally:
            await self._running.end()
        self._played[id(output)] = self._generator.played(input_batch)
        return output
