"""Episodes under Slime: one sample in, the same sample out with its tokens, loss mask, log-probs and settled reward."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from xp.backends.slime.worker.engine import write_turn
from xp.backends.slime.worker.rollout_process import (
    DURING,
    VOID_REWARD,
    Worker,
    worker_of,
    write_played,
)
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.picture_reader import PictureMismatch
from xp.episode.rewards import Overlong
from xp.episode.trajectory import Trajectory
from xp.errors import ExitCode, XpError
from xp.spec import Algorithm, Sampling
from xp.worker.engines.conversation import Conversation
from xp.worker.engines.rows import Rows, check_pictures, play_turns, tokens_of, trainable
from xp.worker.played import PlayedEpisode, SampledTask, is_left_out, live_prompt
from xp.worker.token_budget import evaluation_sampling, is_cut

T = TypeVar("T")


async def generate(
    args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False
) -> Any:
    """Slime's custom generate function: plays one episode, without blocking the event loop.

    Args:
        args: Slime's, with the path of a WorkerConfig.
        sample: a fresh slime.utils.types.Sample of xp's task view, or one that was aborted before.
        sampling_params: SGLang's; the token limit of a turn is set here.
        evaluation: whether the episode is of Slime's held-out data.

    Raises:
        XpError: (LIMIT) the training's time is used.
    """
    from slime.rollout import sample_hooks

    worker = worker_of(args)
    sampling_params = {**sampling_params, **worker.biases}
    if not evaluation:
        worker.check_time(sample_hooks._current_rollout_id or 0)
        sampling_params = {**sampling_params, "min_p": worker.config.spec.training.min_p}
    async with worker.slots:
        if not _is_stopping(args):
            return await _play(worker, args, sample, sampling_params, evaluation)
    sample.status = sample.Status.ABORTED
    return sample


def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool = True) -> Any:
    """Slime's custom evaluation function: its own, or no episodes if no evaluation is due."""
    from slime.rollout.base_types import RolloutFnEvalOutput
    from slime.rollout.sglang_rollout import generate_rollout

    worker = worker_of(args)
    worker.begin_evaluation(rollout_id)
    if worker.evaluated is None:
        return RolloutFnEvalOutput(data={})
    # Slime's evaluation refuses rewards of groups, of which it has none.
    args = copy.copy(args)
    args.group_rm = False
    return generate_rollout(args, rollout_id, data_source, evaluation=evaluation)


class _Aborted(Exception):
    """Slime has as many episodes as it needs."""


async def _play(
    worker: Worker, args: Any, sample: Any, sampling: Mapping[str, Any], evaluation: bool
) -> Any:
    from slime.rollout.sglang_rollout import GenerateState

    chat = worker.chat(GenerateState(args).tokenizer)
    named = {name: sample.metadata[name] for name in ("task_id", "env", "split", "index")}
    task = SampledTask(
        **named, tools=json.dumps(sample.metadata["tools"]), messages=tuple(sample.prompt)
    )
    episode = worker.mix.episode(task)
    prompt_ids = worker.prompt(chat, sample)
    rows = Rows(Conversation(prompt_ids, pictures=digests_of(task.messages)))
    spec = worker.config.spec
    episode.count_by(lambda: tokens_of(rows.all), None if evaluation else Overlong.of(spec))
    try:
        limits = evaluation_sampling(spec) if evaluation else spec.training
        report = await _converse(worker, args, sample, sampling, episode, limits, rows)
    except _Aborted:
        sample.status = sample.Status.ABORTED
        return sample
    finally:
        # Also when anything else fails: the session is closed on the server.
        await _threaded(worker, episode.settle)
    rows.leave_out(episode.undelivered)
    number = sample.metadata.get("sample", (sample.index or 0) % args.n_samples_per_prompt)
    prompt = chat.prompt_text(rows.all[0].prompt_ids)
    ended = PlayedEpisode(task, number, episode, tokens_of(rows.all), prompt)
    trained = await _threaded(worker, partial(_trained, worker, rows.all, evaluation=evaluation))
    if not trained[0].is_played:
        report = None  # It is about other tokens.
    _fill(args, sample, trained[0], report)
    if not worker.is_grouped(task.env, evaluation=evaluation):
        await _record(worker, sample, ended, evaluation=evaluation)
    elif not evaluation:
        worker.ungrouped[sample.index] = ended
    else:
        await _end_held_out(worker, sample, ended)
    close_sample(sample, ended.outcome, chat.end_id, spec.algorithm)
    if args.use_rollout_routing_replay:
        _fill_experts(args, sample)
    if worker.teacher is not None and not evaluation:
        score = partial(worker.teacher.score, sample.tokens, sample.response_length)
        sample.teacher_log_probs = await _threaded(worker, score)
    if evaluation or not spec.env.has_rows:
        return sample
    return _siblings(args, sample, trained[1:])


@dataclass(frozen=True)
class TrainedRow:
    """A row of an episode as Slime's update gets it."""

    row: Conversation
    inputs: dict[str, Any] | None
    """Slime's `multimodal_train_inputs`. None means that it has no pictures."""
    is_played: bool
    """False for a row without meaning in the place of one that the update could not read."""


def _trained(worker: Worker, rows: Sequence[Conversation], *, evaluation: bool) -> list[TrainedRow]:
    pictures = worker.pictures
    if pictures is None or evaluation:
        return [TrainedRow(row, None, is_played=True) for row in rows]
    trained = []
    for row in rows:
        readable = trainable(worker.chat(), row)
        inputs = pictures.train_inputs(readable)
        trained.append(TrainedRow(readable, inputs, is_played=readable is row))
    return trained


def _fill(
    args: Any, sample: Any, trained: TrainedRow, report: dict[str, Any] | None = None
) -> None:
    """Sets a sample's tokens and pixels, and what the engine reports of its last turn."""
    row = trained.row
    sample.multimodal_train_inputs = trained.inputs
    sample.tokens = [*row.prompt_ids, *row.completion_ids]
    sample.response_length = len(row.completion_ids)
    sample.loss_mask = row.mask
    sample.rollout_log_probs = row.logprobs
    sample.append_response_tokens(args, meta_info=report)


def _siblings(args: Any, sample: Any, rows: Sequence[TrainedRow]) -> list[Any]:
    """The samples of an episode of several rows: Slime's loss counts those with the same `rollout_id` as one."""
    sample.rollout_id = sample.index
    others = [copy.copy(sample) for _ in rows]
    for other, row in zip(others, rows, strict=True):
        _fill(args, other, row)
    return [sample, *others]


async def score_group(args: Any, samples: Sequence[Any]) -> list[float]:
    """Slime's custom reward function for a whole group: gives its episodes the group's rewards, and records them."""
    worker = worker_of(args)
    if worker.mix.scores_groups(samples[0].metadata["env"]):
        group = [(sample, worker.ungrouped.pop(sample.index)) for sample in samples]
        await _settle_group(worker, group, evaluation=False)
    return [sample.reward for sample in samples]


async def _end_held_out(worker: Worker, sample: Any, ended: PlayedEpisode) -> None:
    """Keeps an episode of an evaluation until all of its task have ended; Slime scores no groups there."""
    assert worker.evaluation is not None  # Worker.is_grouped
    group = worker.held_out_groups.setdefault(ended.task.task_id, [])
    group.append((sample, ended))
    if len(group) == worker.evaluation.samples_per_task:
        await _settle_group(worker, worker.held_out_groups.pop(ended.task.task_id), evaluation=True)


async def _settle_group(
    worker: Worker, group: Sequence[tuple[Any, PlayedEpisode]], *, evaluation: bool
) -> None:
    await asyncio.wrap_future(worker.mix.score_group([ended.episode for _, ended in group]))
    for sample, ended in group:
        await _record(worker, sample, ended, evaluation=evaluation)
        _set_result(sample, ended.outcome, worker.config.spec.algorithm)


async def _record(worker: Worker, sample: Any, ended: PlayedEpisode, *, evaluation: bool) -> None:
    played = ended.played()
    await _threaded(worker, lambda: worker.recorder.write(_recorded(worker, ended, evaluation)))
    write_played(sample.metadata, played)


async def _converse(
    worker: Worker,
    args: Any,
    sample: Any,
    sampling: Mapping[str, Any],
    episode: Episode,
    limits: Sampling,
    rows: Rows,
) -> dict[str, Any] | None:
    """Plays turns until the episode ends or its tokens are used up.

    Returns:
        What the engine reports of the last turn. None means that there was no turn.

    Raises:
        _Aborted: Slime stopped the engines.
    """
    chat = worker.chat()
    report: dict[str, Any] | None = None
    is_stop = chat.holds_one_of(sampling.get("stop") or ())
    tools = json.dumps(sample.metadata["tools"])
    live = partial(live_prompt, episode, tools, chat, limits.max_prompt_tokens)
    opening = _threaded(worker, live if episode.is_live else episode.start)
    run = partial(_threaded, worker)

    async def write(row: Conversation, reply: Sequence[int]) -> tuple[Sequence[int], bool]:
        nonlocal report
        row.append_env_tokens(reply)
        length = limits.next_turn(len(row.completion_ids))
        ids = [*row.prompt_ids, *row.completion_ids]
        pictures = None
        if worker.pictures is not None:
            pictures = await run(partial(worker.pictures.request, ids, row.pictures))
        turn, meta = await write_turn(
            args, ids, sample.session_id, sampling, length, chat.end_ids, pictures
        )
        if meta["finish_reason"]["type"] == "abort" or _is_stopping(args):
            raise _Aborted
        await opening
        report = dict(meta)
        row.append_policy_tokens(turn.ids, turn.logprobs)
        return turn.ids, is_cut(turn.ids, length, chat.end_ids, is_stop)

    try:
        if episode.is_live:
            rows.begin_with(await opening, episode)
        try:
            await play_turns(rows, episode, chat, limits, write, run)
        except PictureMismatch as fault:
            episode.void(str(fault))
        check_pictures(chat, rows.all, episode)
        return report
    finally:
        await opening


def close_sample(sample: Any, outcome: EpisodeResult, end_id: int, algorithm: Algorithm) -> None:
    """Sets a sample's result, and gives it a token if it has none."""
    _set_result(sample, outcome, algorithm)
    if not sample.response_length:
        # An episode that failed before its first token: Slime's loss cuts responses out by their length, and needs one.
        sample.append_response_tokens(tokens=[end_id], trainable=False)


def _set_result(sample: Any, outcome: EpisodeResult, algorithm: Algorithm) -> None:
    """Sets a sample's status, its reward, and the mark that excludes it from training."""
    sample.status = sample.Status.COMPLETED
    if outcome.status is EpisodeStatus.VOID:
        sample.status = sample.Status.FAILED
    elif outcome.status is EpisodeStatus.TRUNCATED:
        sample.status = sample.Status.TRUNCATED
    sample.reward = VOID_REWARD if outcome.reward is None else outcome.reward
    sample.remove_sample = is_left_out(outcome, algorithm)


def _fill_experts(args: Any, sample: Any) -> None:
    """Adds experts after the last trained token: Slime needs some for each token but one.

    They are the first ones, since Slime refuses a sample whose experts are all 0.

    Raises:
        XpError: (ENGINE) the engine returned no experts of a token before a trained one.
    """
    import torch

    chosen = sample.rollout_routed_experts
    num_chosen = 0 if chosen is None else len(chosen)
    num_prompt = len(sample.tokens) - sample.response_length
    needed = max(
        (num_prompt + at for at, is_trained in enumerate(sample.loss_mask) if is_trained), default=0
    )
    if num_chosen < needed:
        raise XpError(
            f"the engine returned the experts of {num_chosen} tokens, and the update needs those of {needed}: does it"
            " run with --enable-return-routed-experts? Or set model.router_replay=false",
            ExitCode.ENGINE,
        )
    experts = torch.arange(args.moe_router_topk, dtype=torch.int32)
    of_tokens = experts.repeat(len(sample.tokens) - 1, args.num_layers, 1)
    if chosen is not None:
        of_tokens[:num_chosen] = torch.as_tensor(chosen)
    sample.rollout_routed_experts = of_tokens


def _recorded(worker: Worker, ended: PlayedEpisode, evaluation: bool) -> Trajectory:
    from slime.rollout import sample_hooks

    phase = f"evaluate/{worker.evaluated or DURING}" if evaluation else worker.config.stage
    step = 0
    if worker.evaluated in (None, DURING):
        step = sample_hooks._current_rollout_id or 0
    return ended.trajectory(worker.config.places.run, phase, step)


def _is_stopping(args: Any) -> bool:
    """Returns whether Slime has as many episodes as it needs."""
    from slime.rollout.sglang_rollout import GenerateState

    return bool(GenerateState(args).aborted)


def _threaded(worker: Worker, call: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(worker.pool, call)
