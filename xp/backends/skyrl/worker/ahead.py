"""SkyRL's fully asynchronous trainer with xp's parts: groups are generated while the policy is updated with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer

from xp.backends.skyrl.worker.running_episode import RunningEpisode
from xp.backends.skyrl.worker.trainer import XpTrainer

OF_ROLLOUT = "rollout_is"
"""Name of a loss that SkyRL accepts in this trainer."""


class AheadTrainer(XpTrainer, FullyAsyncRayPPOTrainer):  # type: ignore[misc]
    """An XpTrainer whose steps consist of the groups that end first.

    SkyRL refuses losses with a ratio to log-probabilities that it computes itself, since the generating policy does
    not exist any more then. Here the ratio is to the policy before the update, and the importance correction, which a
    plan must enable, is the weight between that policy and the generating one (decoupled clipping, arXiv:2110.00641).
    """

    generator: Any

    def __init__(self, *rules: Any, **parts: Any) -> None:
        algorithm = parts["cfg"].trainer.algorithm
        loss, algorithm.policy_loss_type = algorithm.policy_loss_type, OF_ROLLOUT
        try:
            super().__init__(*rules, **parts)
        finally:
            algorithm.policy_loss_type = loss
        self._played: dict[int, list[RunningEpisode]] = {}
        """Episodes by the identity of the generator's output, which SkyRL keeps until it is trained on."""
        self.generator = _Remembering(self.generator, self._played)

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        """Makes a loader of one prompt at a time: a group begins when another one has ended."""
        trainer = self.cfg.trainer
        self.train_dataloader = self._ordered_loader(1)
        self.num_steps_per_epoch = len(self.train_dataloader) // trainer.train_batch_size
        steps = self.num_steps_per_epoch * trainer.epochs
        self.total_training_steps = min(steps, trainer.max_training_steps or steps)

    def load_checkpoints(self) -> Any:
        """Counts the steps by the trained tasks, since SkyRL's last checkpoint has one step too many."""
        step, path, consumed, *rest = super().load_checkpoints()
        if consumed is not None:
            step = len(consumed) // self.cfg.trainer.train_batch_size
        return step, path, consumed, *rest

    def convert_generation_group_mini_batch_to_training_input(
        self, cur_generation_group_mini_batch: Sequence[Any], dropped_groups: Any = None
    ) -> Any:
        """Logs the results of a step's groups first; raises XpError(UNHEALTHY) if too many are void."""
        groups = cur_generation_group_mini_batch
        episodes = [one for group in groups for one in self._played.pop(id(group.generator_output))]
        self.tracker.episodes(episodes, self.global_step, max(group.group_completion_time_s for group in groups))
        return super().convert_generation_group_mini_batch_to_training_input(groups, dropped_groups)


class _Remembering:
    """A generator that stores the episodes of each training output.

    Args:
        generator: xp's generator.
        played: mapping for the episodes.
    """

    def __init__(self, generator: Any, played: dict[int, list[RunningEpisode]]) -> None:
        self._generator, self._played = generator, played

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        """Plays a group."""
        output = await self._generator.generate(input_batch, disable_tqdm=disable_tqdm)
        self._played[id(output)] = self._generator.running_episodes(input_batch)
        return output
