"""Plays episodes for TRL: from the trainer's prompts to token ids, masks and settled rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from xp.backends.trl.worker.checkpoints import FORM
from xp.backends.trl.worker.generation import EngineOf, Generation
from xp.backends.trl.worker.held_out import HeldOutEvaluation
from xp.backends.trl.worker.process import Ranks, TrainingProcess
from xp.episode.advantages import without_variance
from xp.episode.metrics import EpisodeFacts
from xp.episode.rewards import Overlong
from xp.lib.atomic import write_atomically
from xp.tasks.curriculum import FILE, Curriculum, StepDraw
from xp.tasks.row import TaskRow
from xp.worker.engines.conversation import Conversation
from xp.worker.engines.play import EpisodePlay, Rollout, sample_numbers
from xp.worker.engines.rows import trainable
from xp.worker.played import is_left_out, record


@dataclass(frozen=True)
class StepSamples:
    """One process's episodes of a rollout step."""

    step: int
    """Number of the step that is trained on them, from 0."""
    policy: int
    """Number of rollout steps that the generating policy was trained for."""
    seconds: float
    """Wall-clock time of the episodes, in seconds."""
    prompt_ids: list[list[int]]
    """The first row of each episode, then the further rows of all; as in the next three fields."""
    completion_ids: list[list[int]]
    logprobs: list[list[float]]
    env_mask: list[list[int]]
    """1 for trained tokens, 0 for others."""
    episodes: list[int]
    """Number of each row's episode."""
    pictures: list[list[str]]
    """Digests of the pictures of each row, in the order of their placeholders."""
    played: list[EpisodeFacts]

    def output(self) -> dict[str, list[Any]]:
        """TRL's required keys, `env_mask`, `episodes`, `pictures`, and `settled` with the rewards for the reward
        function.

        The first row of an episode has its reward.
        """
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "episodes", "pictures")
        further = len(self.episodes) - len(self.played)
        rewards = [*(episode.outcome.reward for episode in self.played), *[None] * further]
        return {**{key: getattr(self, key) for key in keys}, "settled": rewards}


class Rollouts(TrainerCallback):  # type: ignore[misc]
    """TRL's `rollout_func`: plays one step's episodes, records them, and returns the inputs of the loss.

    It is also a callback of the trainer, which keeps a curriculum's state in each checkpoint.

    Args:
        process: this process's parts.
        order: tasks of all rollout steps. With a curriculum, TRL's prompts only say how many episodes it asks for.
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
        self._process = process
        self._config = process.config
        self._ranks = process.ranks
        self._order = order
        self._held_out = held_out
        self._curriculum = curriculum
        self._rows = {row.task_id: row for row in order}
        server_log = f"{self._config.stage_dir}/vllm.log"
        is_ahead = self._config.spec.training.max_staleness > 0
        guesses = self._config.spec.backend.engine.speculative is not None
        self._generation = Generation(
            process.chat, self._ranks, server_log, is_ahead=is_ahead, guesses=guesses
        )

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        """Plays one episode for each prompt (a group's prompts are repeated already).

        Returns:
            The mapping of StepSamples.output.
        """
        self._process.log.begin()
        step = self._config.rollout_steps(trainer.state.global_step)
        if self._curriculum is None:
            rows = [self._rows[prompt[0][TASK_ID]] for prompt in prompts]
        else:
            self._curriculum.begin(step)
            rows = [row for row, _ in self._numbered(step)]
        samples = self._samples(rows, step, trainer)
        played = [episode for share in self._ranks.gather(samples.played) for episode in share]
        more: dict[str, float] = {}
        if self._process.log.is_ahead:
            more["training/staleness"] = float(step - samples.policy)
        if self._curriculum is not None:
            more |= self._curriculum.settle(step, played)
        self._process.log.episodes(played, samples.seconds, more)
        return samples.output()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Trainer's hook: writes the curriculum's state before Seal."""
        if self._curriculum is not None and self._ranks.is_main:
            checkpoint = Path(args.output_dir) / FORM.format(state.global_step)
            step = self._config.rollout_steps(state.global_step)
            write_atomically(checkpoint / FILE, self._curriculum.state(step).to_json())

    def resume(self, checkpoint: Path) -> None:
        """Restores what a checkpoint has of rollouts; raises XpError(RUN_DIR) if it has no state of a curriculum."""
        if self._curriculum is not None:
            self._curriculum.restore(checkpoint / FILE)

    def close(self) -> None:
        """Ends what plays beside the trainer: nothing."""

    def evaluate_trained(self, trainer: Any) -> None:
        """Plays the held-out tasks with the trained model; every rank must call it."""
        if self._held_out is None:
            return
        self._generation.update(trainer)
        with self._generation.engine(trainer) as engine:
            self._held_out.play_trained(engine, trainer)

    def _samples(self, rows: Sequence[TaskRow], step: int, trainer: Any) -> StepSamples:
        """This process's episodes of a step."""
        numbers = self._sample_numbers([row.task_id for row in rows])
        # TRL has sent the weights to vLLM before it requested episodes.
        self._generation.update(trainer, sends=False)
        with self._generation.engine(trainer) as engine:
            if self._held_out is not None and self._held_out.is_due(step):
                self._held_out.play(engine, step, trainer)
            return self._play(engine, list(zip(rows, numbers, strict=True)), step, policy=step)

    def _play(
        self, engine: EngineOf, numbered: Sequence[tuple[TaskRow, int]], step: int, policy: int
    ) -> StepSamples:
        """Plays and records episodes of a step.

        Args:
            engine: engine with the policy's weights.
            numbered: each row with the number of its sample.
            step: number of the step that is trained on them.
            policy: number of rollout steps that the policy was trained for.
        """
        began = time.monotonic()
        process = self._process
        spec = self._config.spec
        opened = engine(spec.training, f"{spec.seed}/{step}")
        group_size = spec.training.group_size
        overlong = Overlong.of(spec)
        play = EpisodePlay(opened, process.chat, numbered, process.mix, None, group_size, overlong)
        self._begun(play)
        rollouts = list(play)
        for rollout in rollouts:
            # TRL refuses an empty completion, as of an episode whose first turn was lost.
            if not rollout.conversation.completion_ids:
                rollout.conversation.append_env_tokens(list(process.chat.end_ids)[:1])
        episodes = (rollout.record for rollout in rollouts)
        played = record(episodes, process.recorder, self._config.places.run, "train", step)
        is_masked = [
            is_left_out(rollout.outcome, spec.algorithm) or is_flat
            for rollout, is_flat in zip(rollouts, self._are_flat(rollouts), strict=True)
        ]
        rows = self._all_rows(rollouts)
        return StepSamples(
            step=step,
            policy=policy,
            seconds=time.monotonic() - began,
            prompt_ids=[row.prompt_ids for _, row in rows],
            completion_ids=[row.completion_ids for _, row in rows],
            logprobs=[row.logprobs for _, row in rows],
            env_mask=[
                [0] * len(row.mask) if is_masked[episode] else row.mask for episode, row in rows
            ],
            episodes=[episode for episode, _ in rows],
            pictures=[row.pictures for _, row in rows],
            played=played,
        )

    def _all_rows(self, rollouts: Sequence[Rollout]) -> list[tuple[int, Conversation]]:
        """The number of its episode and each row: the first ones, the further ones, and masked ones without meaning.

        TRL gathers the same number from each process, in whole groups, and cuts it into equal micro-batches.
        """
        rows = [(number, rollout.conversation) for number, rollout in enumerate(rollouts)]
        rows += [
            (number, row)
            for number, rollout in enumerate(rollouts)
            for row in rollout.conversations[1:]
        ]
        rows = [(number, trainable(self._process.chat, row)) for number, row in rows]
        longest = max(self._ranks.gather([len(rows) - len(rollouts)]))[0]
        training = self._config.spec.training
        part = lcm(training.group_size, max(1, len(rollouts) // training.micro_batch_size))
        filling = Conversation.filling(self._process.chat.end_id)
        return rows + [(0, filling)] * (len(rollouts) + ceil(longest / part) * part - len(rows))

    def _begun(self, play: EpisodePlay) -> None:
        """Hook before episodes are played."""

    def _numbered(self, step: int) -> list[tuple[TaskRow, int]]:
        """This process's share of a step's tasks, in the order of TRL's requests, with the numbers of the samples."""
        training = self._config.spec.training
        if self._curriculum is None:
            size = training.prompts_per_step
            tasks = self._order[step * size : (step + 1) * size]
        else:
            tasks = self._curriculum.tasks(step)
        rows = [row for row in tasks for _ in range(training.group_size)]
        numbered = list(zip(rows, sample_numbers([row.task_id for row in rows]), strict=True))
        share = len(rows) // self._ranks.count
        return numbered[self._ranks.number * share :][:share]

    def _sample_numbers(self, task_ids: Sequence[str]) -> list[int]:
        """Sample numbers of this rank's episodes; a group may be on several ranks."""
        shares = self._ranks.gather(task_ids)
        before = sum(len(share) for share in shares[: self._ranks.number])
        numbers = sample_numbers([task_id for share in shares for task_id in share])
        return numbers[before : before + len(task_ids)]

    def _are_flat(self, rollouts: Sequence[Rollout]) -> list[bool]:
        """Returns for each episode whether the filter leaves it out with its group; a process has whole groups."""
        if not self._config.spec.algorithm.zero_variance_filter:
            return [False] * len(rollouts)
        groups = [
            str(number // self._config.spec.training.group_size) for number in range(len(rollouts))
        ]
        return without_variance([rollout.outcome.reward for rollout in rollouts], groups)


def decide_together(ranks: Ranks) -> Callable[[Callable[[], StepDraw]], StepDraw]:
    """A curriculum's `decide`: the first rank draws for all, so that a user's function is called once."""

    def decide(draw: Callable[[], StepDraw]) -> StepDraw:
        drawn = ranks.gather([draw() if ranks.is_main else None])[0][0]
        assert drawn is not None
        return drawn

    return decide


TASK_ID = "task_id"
"""Extra key of a prompt's first message, which TRL passes unchanged to the rollout function, once per episode."""


def trl_rows(order: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Rows of the `datasets.Dataset`, one per prompt; the policy's prompt is made of xp's own row, with all keys."""
    return [
        {
            "prompt": [
                {"role": message["role"], "content": message["content"], TASK_ID: row.task_id}
                for message in row.messages
            ]
        }
        for row in order
    ]
