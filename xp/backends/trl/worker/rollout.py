"""Episodes under TRL: the trainer's prompts in, token ids, masks and settled rewards out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.episodes import Rollout, play_with, sample_numbers
from xp.backends.trl.worker.generation import Generation
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.tasks_view import SLOT, TASK_ID
from xp.episode.metrics import Played
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow
from xp.worker.curriculum import Curriculum
from xp.worker.played import record

if TYPE_CHECKING:
    from xp.backends.trl.worker.held_out import HeldOutEvaluation


class Rollouts:
    """TRL's `rollout_func`: plays one step's episodes, records them, and hands over what the loss needs.

    Args:
        config: of the run.
        chat: the policy's tokenizer.
        rows: task id -> row.
        mix: the environments.
        log: takes the results of the step's episodes; raises where too many are void.
        recorder: takes every trajectory of this process.
        ranks: the training processes; each plays its share of a step.
        held_out: plays in between; None: nobody does.
        curriculum: selects the tasks of a step; None: they are those of the prompts.
    """

    def __init__(
        self,
        config: TRLTrainConfig,
        chat: ChatTokens,
        rows: Mapping[str, TaskRow],
        mix: EnvironmentMixture,
        log: TRLStepLog,
        recorder: Recorder,
        ranks: Ranks,
        held_out: HeldOutEvaluation | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        self._config, self._chat, self._rows = config, chat, rows
        self._mix, self._log, self._recorder, self._ranks = mix, log, recorder, ranks
        self._held_out, self._curriculum = held_out, curriculum
        server_log = f"{config.common.stage_dir}/vllm.log"
        self._generation = Generation(config.common.sampling.seed, chat, ranks, server_log)

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode for each prompt (a group's prompts are repeated already).

        Returns:
            TRL's required keys, `env_mask` (0: not trained on) and `settled`, the rewards for the reward function.
        """
        began = time.monotonic()
        step = trainer.state.global_step // self._config.updates_per_rollout
        rows = self._tasks(prompts, step)
        numbers = self._sample_numbers([row.task_id for row in rows])
        numbered = list(zip(rows, numbers, strict=True))
        with self._generation.step(trainer, step) as engine:
            if self._held_out is not None and self._held_out.is_due(step):
                self._held_out.play(engine, step, trainer)
                began = time.monotonic()
            rollouts = play_with(engine(self._config.common.sampling), self._chat, numbered, self._mix)
        episodes = (rollout.record for rollout in rollouts)
        shares = self._ranks.gather(record(episodes, self._recorder, self._config.common.run, "train", step))
        played = [one for share in shares for one in share]
        more = self._learnt(step, played)
        self._log.episodes(played, time.monotonic() - began, more)
        return {
            "prompt_ids": [rollout.conversation.prompt_ids for rollout in rollouts],
            "completion_ids": [rollout.conversation.completion_ids for rollout in rollouts],
            "logprobs": [rollout.conversation.logprobs for rollout in rollouts],
            "env_mask": [self._mask(rollout) for rollout in rollouts],
            "settled": [rollout.outcome.reward for rollout in rollouts],
        }

    def _tasks(self, prompts: Sequence[Sequence[Mapping[str, Any]]], step: int) -> list[TaskRow]:
        """The task of each episode of this process."""
        if self._curriculum is None:
            return [self._rows[prompt[0][TASK_ID]] for prompt in prompts]
        chosen, size = self._curriculum.tasks(step), self._config.prompts_per_step
        slots = [prompt[0][SLOT] - step * size for prompt in prompts]
        assert all(0 <= slot < size for slot in slots), f"TRL gave prompts of another step than {step}"
        return [chosen[slot] for slot in slots]

    def _learnt(self, step: int, played: Sequence[Played]) -> dict[str, float]:
        """Tell the curriculum of a step; its metrics."""
        if self._curriculum is None:
            return {}
        metrics = self._curriculum.num_within(step)
        self._curriculum.played(step, played)
        return metrics

    def _sample_numbers(self, task_ids: Sequence[str]) -> list[int]:
        """A group may lie on several ranks."""
        shares = self._ranks.gather(task_ids)
        before = sum(len(share) for share in shares[: self._ranks.number])
        numbers = sample_numbers([task_id for share in shares for task_id in share])
        return numbers[before : before + len(task_ids)]

    def _mask(self, rollout: Rollout) -> list[int]:
        is_left_out = self._config.mask_truncated and rollout.outcome.status is EpisodeStatus.TRUNCATED
        mask = rollout.conversation.mask
        return [0] * len(mask) if is_left_out or rollout.outcome.status is EpisodeStatus.VOID else mask
