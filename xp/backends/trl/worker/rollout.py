"""Episodes under TRL: the trainer's prompts in, token ids, masks and settled rewards out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xp.backends.trl.worker.config import TRLSampling, TRLTrainConfig
from xp.backends.trl.worker.conversation import Conversation, OpenEngine, TurnEngine
from xp.backends.trl.worker.generation import Generation
from xp.backends.trl.worker.ranks import Ranks
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.tasks_view import TASK_ID
from xp.episode.episode import Episode
from xp.episode.metrics import Played
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus, Outcome, Reply
from xp.episode.recorder import Recorder
from xp.episode.tokens import ChatTokens
from xp.episode.trajectory import Tokens, Trajectory, trajectory
from xp.tasks.row import TaskRow

if TYPE_CHECKING:
    import torch

    from xp.backends.trl.worker.held_out import HeldOutEvaluation


@dataclass(frozen=True)
class Rollout:
    """An episode that was played to its end."""

    row: TaskRow
    sample: int
    """Which of the episodes of this task, from 0."""
    conversation: Conversation
    episode: Episode
    outcome: Outcome
    prompt: str | None
    """As the model read it, where the run keeps it."""

    def played(self) -> Played:
        return Played(self.row.env, self.row.task_id, self.outcome, sum(self.conversation.mask))

    def trajectory(self, run: str, phase: str, step: int) -> Trajectory:
        mask = self.conversation.mask
        tokens = Tokens(len(self.conversation.prompt_ids), sum(mask), len(mask) - sum(mask))
        return trajectory(
            self.episode,
            self.row.messages,
            run=run,
            phase=phase,
            step=step,
            sample=self.sample,
            tools=self.row.tools,
            tokens=tokens,
            prompt=self.prompt,
        )


class Rollouts:
    """TRL's `rollout_func`: plays one step's episodes, records them, and hands over what the loss needs.

    Args:
        config: of the run.
        chat: the policy's tokenizer.
        rows: task id -> row.
        mix: the environments.
        log: takes the step's Outcomes; raises where too many are void.
        recorder: takes every trajectory of this process.
        ranks: the training processes; each plays its share of a step.
        held_out: plays in between; None: nobody does.
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
    ) -> None:
        self._config, self._chat, self._rows = config, chat, rows
        self._mix, self._log, self._recorder, self._ranks = mix, log, recorder, ranks
        self._held_out = held_out
        server_log = f"{config.common.stage_dir}/vllm.log"
        self._generation = Generation(config.common.sampling.seed, chat, ranks, server_log)

    def __call__(self, prompts: list[list[dict[str, Any]]], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode for each prompt (a group's prompts are repeated already).

        Returns:
            TRL's required keys, `env_mask` (0: not trained on) and `settled`, the rewards for the reward function.
        """
        began = time.monotonic()
        step = trainer.state.global_step // self._config.updates_per_rollout
        ids = [prompt[0][TASK_ID] for prompt in prompts]
        numbered = list(zip([self._rows[task_id] for task_id in ids], self._sample_numbers(ids), strict=True))
        with self._generation.step(trainer, step) as engine:
            if self._held_out is not None and self._held_out.is_due(step):
                self._held_out.play(engine, step, trainer)
                began = time.monotonic()
            rollouts = play_with(engine(self._config.common.sampling), self._chat, numbered, self._mix)
        for rollout in rollouts:
            self._recorder.write(rollout.trajectory(self._config.common.run, "train", step))
        shares = self._ranks.gather([rollout.played() for rollout in rollouts])
        self._log.episodes([one for share in shares for one in share], time.monotonic() - began)
        return {
            "prompt_ids": [rollout.conversation.prompt_ids for rollout in rollouts],
            "completion_ids": [rollout.conversation.completion_ids for rollout in rollouts],
            "logprobs": [rollout.conversation.logprobs for rollout in rollouts],
            "env_mask": [self._mask(rollout) for rollout in rollouts],
            "settled": [rollout.outcome.reward for rollout in rollouts],
        }

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


def play(
    model: Any,
    chat: ChatTokens,
    rows: Sequence[TaskRow],
    mix: EnvironmentMixture,
    sampling: TRLSampling,
    generator: torch.Generator,
) -> list[Rollout]:
    """Play one episode for each row with a model of this process."""
    from xp.backends.trl.worker.engine import TransformersEngine

    def opened(prompts: Sequence[Sequence[int]]) -> TurnEngine:
        return TransformersEngine(model, prompts, chat.end_ids, sampling, generator, chat.holds_one_of(sampling.stop))

    numbered = list(zip(rows, sample_numbers([row.task_id for row in rows]), strict=True))
    return play_with(opened, chat, numbered, mix)


def play_with(
    open_engine: OpenEngine, chat: ChatTokens, numbered: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture
) -> list[Rollout]:
    """Play one episode for each row, in lock-step, in waves of as many as may have sessions open at the same time.

    Args:
        numbered: each row with the number of its sample.
    """
    size = mix.max_sessions()
    waves = [numbered[start : start + size] for start in range(0, len(numbered), size)]
    return [one for wave in waves for one in _play_wave(open_engine, chat, wave, mix)]


def sample_numbers(task_ids: Sequence[str]) -> list[int]:
    """How many of the same came before."""
    seen: dict[str, int] = {}
    numbers = []
    for task_id in task_ids:
        numbers.append(seen.get(task_id, 0))
        seen[task_id] = numbers[-1] + 1
    return numbers


def _play_wave(
    open_engine: OpenEngine, chat: ChatTokens, numbered: Sequence[tuple[TaskRow, int]], mix: EnvironmentMixture
) -> list[Rollout]:
    """The environment's calls of a turn are in flight together; sessions open while the model writes its first turn."""
    rows = [row for row, _ in numbered]
    prompts = {row.task_id: chat.prompt(row.messages, row.tools) for row in rows}
    episodes = [mix.episode(row) for row in rows]
    with ThreadPoolExecutor(min(mix.calls_at_once(), len(rows))) as pool:
        starts = [pool.submit(episode.start) for episode in episodes]
        engine = open_engine([prompts[row.task_id] for row in rows])
        while engine.goes_on():
            engine.extend(dict(_step_all(engine, episodes, starts, chat, pool)))
        outcomes = list(pool.map(Episode.settle, episodes))
    return [
        Rollout(row, sample, conversation, episode, outcome, chat.kept(conversation.prompt_ids))
        for (row, sample), conversation, episode, outcome in zip(
            numbered, engine.conversations, episodes, outcomes, strict=True
        )
    ]


def _step_all(
    engine: TurnEngine,
    episodes: Sequence[Episode],
    starts: Sequence[Future[None]],
    chat: ChatTokens,
    pool: ThreadPoolExecutor,
) -> Iterator[tuple[int, list[int]]]:
    """One turn of every live episode; yields the token ids that come back, for those that go on."""
    turns = engine.turn()
    texts = [chat.text(turn.ids) for turn in turns]

    def step(number: int, text: str) -> Reply:
        starts[number].result()
        return episodes[number].step(text)

    answers = pool.map(step, [turn.number for turn in turns], texts)
    for turn, answer in zip(turns, answers, strict=True):
        if answer.is_done:
            continue
        room = engine.room(turn.number)
        ids = chat.reply_within(room, answer.messages, last_id=turn.last_id, tools=answer.tools)
        # Otherwise settle() finds the episode truncated.
        if ids is not None:
            yield turn.number, ids
