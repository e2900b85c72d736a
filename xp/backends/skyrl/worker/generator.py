"""Episodes under SkyRL: xp's own loop of turns, behind SkyRL's interface of a generator."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
    get_sampling_params_for_backend,
)
from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.backends.skyrl_train.utils.routed_experts import RoutedExpertTrace
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.generators.utils import prepare_generator_input

from xp.backends.skyrl.worker.pictures import SkyRLPictures
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeStatus
from xp.episode.picture_reader import PictureMismatch
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.lib.digest import digest_number
from xp.lib.models.files import config_of
from xp.lib.nested import grouped
from xp.spec import RunSpec, Sampling
from xp.worker.engines.completions import biases
from xp.worker.engines.conversation import Conversation
from xp.worker.engines.rows import Rows, check_pictures, play_turns, tokens_of, trainable
from xp.worker.media import placeholder_ids
from xp.worker.played import PlayedEpisode, SampledTask, is_left_out, live_prompt
from xp.worker.skyrl_names import ENV_CLASS
from xp.worker.token_budget import evaluation_sampling, evaluation_seed, is_cut

T = TypeVar("T")
VOID = "void"
"""Stop reason of an episode without a reward; SkyRL keeps stop reasons beside the samples on every path."""
HELD_OUT = "eval"
"""SkyRL's phase of an evaluation."""


@dataclass(frozen=True)
class _Batch:
    """What the episodes of one call of `generate` share."""

    phase: str
    step: int
    """SkyRL's global step."""
    sampling: Mapping[str, Any]
    """Sampling parameters in the engine's format."""
    is_stop: Callable[[Sequence[int]], bool]
    """Returns whether the generated tokens end with a stop string."""
    cache_salt: str | None

    @property
    def is_held_out(self) -> bool:
        return self.phase == HELD_OUT


@dataclass
class _Play:
    """One episode of a batch."""

    task: SampledTask
    sample: int
    """Index among the episodes of this task in this step, from 0."""
    trajectory_id: Any
    """SkyRL's."""
    episode: Episode
    budget: Sampling
    seed: str
    """Seed of the episode, from which those of its turns are derived."""
    token_rows: Rows
    experts: RoutedExpertTrace | None
    """Experts of each token, as the engine chose them. None means that the update has its own."""
    seconds: float = 0.0

    @property
    def session(self) -> str:
        """Name of the episode for the engine's router."""
        return str(self.trajectory_id.to_string())

    def routed_experts(self) -> Any:
        """SkyRL's array of the chosen experts. None means that there are none."""
        if self.experts is None or not self.experts.prompt_start:
            return None
        row = self.token_rows.all[0]
        masks = [0] * len(row.prompt_ids) + row.mask
        return self.experts.finalize(token_count=len(masks), loss_mask=masks)


class XpGenerator(GeneratorInterface):  # type: ignore[misc]
    """Plays a batch's episodes, with the same tokens as xp's other adapters.

    Args:
        cfg: SkyRLTrainConfig.
        client: SkyRL's client of the engines.
        chat: the policy's tokenizer.
        mix: the environments.
        spec: the run's.
        pictures: the pictures of the episodes. None means that model.images is off.
    """

    def __init__(
        self,
        cfg: Any,
        client: Any,
        chat: ChatTokens,
        mix: EnvironmentMixture,
        spec: RunSpec,
        pictures: SkyRLPictures | None = None,
    ) -> None:
        self.chat = chat
        self._pictures = pictures
        self._cfg = cfg.generator
        self._client = client
        self._model_name = resolve_policy_model_name(cfg)
        self._mix = mix
        self._spec = spec
        self._overlong = Overlong.of(spec)
        self._pool = ThreadPoolExecutor(max(1, cfg.environment.skyrl_gym.max_env_workers))
        """Threads that wait for environments."""
        self._never: Sequence[int] = ()
        """Tokens that are never sampled. vLLM refuses biases together with guessed tokens."""
        if spec.backend.engine.speculative is None:
            config = config_of(str(spec.model.path), Path(), spec.model.revision)
            self._never = placeholder_ids(config or {})
        self._played: dict[int, list[PlayedEpisode]] = {}
        """Episodes of each batch by the identity of SkyRL's input."""
        self._slots = asyncio.Semaphore()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun: dict[str, tuple[int, Counter[str]]] = {}
        """Phase -> its step, and the number of episodes of that step that have begun, by task and sample."""

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        """Plays one batch; if one episode fails the batch, the sessions of all others are closed.

        Returns:
            SkyRL's GeneratorOutput.
        """
        del disable_tqdm
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            # More episodes than sessions would fill the pool with waiting calls, and no session would ever end.
            self._slots = asyncio.Semaphore(self._mix.max_sessions())
        batch = self._batch(input_batch)
        prompts = zip(input_batch["env_extras"], input_batch["trajectory_ids"], strict=True)
        plays = [self._begin(extras, trajectory_id, batch) for extras, trajectory_id in prompts]
        groups = grouped((play.trajectory_id.instance_id, play) for play in plays)
        tasks = [asyncio.ensure_future(self._play_group(group, batch)) for group in groups.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            for play in plays:
                await self._in_thread(play.episode.settle)
        self._played[id(input_batch)] = [self._record(play) for play in plays]
        output = self._output(plays, batch)
        if self._pictures is not None and not batch.is_held_out:
            pictures = [row.pictures for _, row in self._rows(plays)]
            output["pixel_values"], output["image_grid_thw"] = self._pictures.pixels(pictures)
        return output

    async def held_out(
        self, loader: Any, cfg: Any, step: int
    ) -> AsyncIterator[list[PlayedEpisode]]:
        """Plays a view of held-out tasks with the sampling of evaluations, one batch at a time.

        Args:
            loader: of the view.
            cfg: SkyRLTrainConfig.
            step: of the training, for SkyRL's ids.
        """
        engine = cfg.generator.inference_engine.backend
        sampling = get_sampling_params_for_backend(engine, cfg.generator.eval_sampling_params)
        self._begun.pop(HELD_OUT, None)  # two evaluations of one step have the same seeds
        for batch in loader:
            inputs, _ = prepare_generator_input(batch, 1, sampling, ENV_CLASS, HELD_OUT, step)
            await self.generate(inputs)
            yield self.played(inputs)

    def played(self, input_batch: Any) -> list[PlayedEpisode]:
        """Returns the episodes of a played batch, in its order, and removes them from this object."""
        return self._played.pop(id(input_batch))

    def _batch(self, input_batch: Any) -> _Batch:
        phase = ""
        step = 0
        metadata = input_batch.get("batch_metadata")
        if metadata is not None:
            phase = metadata.training_phase
            step = metadata.global_step
        salt = None
        version = getattr(self._client, "weight_version", None)
        if self._cfg.use_cache_salt and version is not None:
            salt = str(version)
        sampling = input_batch["sampling_params"]
        is_stop = self.chat.holds_one_of(sampling.get("stop") or ())
        return _Batch(phase, step, sampling, is_stop, salt)

    def _begin(self, extras: Mapping[str, Any], trajectory_id: Any, batch: _Batch) -> _Play:
        """An episode of a row of the data view, as SkyRL's loader passes it."""
        task = SampledTask.of_columns(extras)
        sample = trajectory_id.repetition_id
        episode = self._mix.episode(task)
        ids = self.chat.prompt(task.messages, task.tools)
        rows = Rows(Conversation(ids, pictures=digests_of(task.messages)))
        overlong = self._overlong
        limits: Sampling = self._spec.training
        experts = None
        if batch.is_held_out:
            overlong = None
            limits = evaluation_sampling(self._spec)
        elif self._cfg.inference_engine.enable_return_routed_experts:
            experts = RoutedExpertTrace()
        seed = self._seed(task.task_id, sample, batch)
        play = _Play(task, sample, trajectory_id, episode, limits, seed, rows, experts)
        episode.count_by(lambda: tokens_of(play.token_rows.all), overlong)
        return play

    def _seed(self, task_id: str, sample: int, batch: _Batch) -> str:
        """Seed of an episode; a task that a step plays again has other ones."""
        phase = batch.phase
        step = batch.step
        if phase not in self._begun or self._begun[phase][0] != step:
            self._begun[phase] = (step, Counter())
        begun = self._begun[phase][1]
        name = f"{task_id}/{sample}"
        begun[name] += 1
        if (
            batch.is_held_out and step == 0
        ):  # of a whole model, as xp.worker.engines.evaluate plays it
            return f"{evaluation_seed(self._spec)}/{task_id}/{begun[name] - 1}"
        return f"{self._spec.seed}/{phase}/{step}/{name}/{begun[name]}"

    async def _play_group(self, group: Sequence[_Play], batch: _Batch) -> None:
        """Plays the episodes of one prompt, then has the group's rewards computed."""
        await asyncio.gather(*(self._play(play, batch) for play in group))
        if len(group) > 1 and self._mix.scores_groups(group[0].task.env):
            scoring = self._mix.score_group([play.episode for play in group])
            await asyncio.wrap_future(scoring)

    async def _play(self, play: _Play, batch: _Batch) -> None:
        """Plays one episode, whose session opens while the model writes its first turn."""
        episode = play.episode
        live = partial(
            live_prompt, episode, play.task.tools, self.chat, play.budget.max_prompt_tokens
        )
        async with self._slots:
            began = time.monotonic()
            opening = self._in_thread(live if episode.is_live else episode.start)
            try:
                # The prompt of the session replaces the prepared one.
                if episode.is_live:
                    play.token_rows.begin_with(await opening, episode)
                write = partial(self._write, play, batch, opening)
                turns = play_turns(
                    play.token_rows, episode, self.chat, play.budget, write, self._in_thread
                )
                try:
                    await turns
                except PictureMismatch as fault:
                    episode.void(str(fault))
                check_pictures(self.chat, play.token_rows.all, episode)
            finally:
                await opening
                await self._in_thread(episode.settle)
                await self._client.finish_session(play.session)
            play.token_rows.leave_out(episode.undelivered)
            play.seconds = time.monotonic() - began
        for row in play.token_rows.all:
            if not row.completion_ids:  # SkyRL needs a token
                row.append_env_tokens([self.chat.end_id])

    async def _write(
        self,
        play: _Play,
        batch: _Batch,
        opening: asyncio.Future[Any],
        row: Conversation,
        reply: Sequence[int],
    ) -> tuple[Sequence[int], bool]:
        """Has the engine write the next turn of a row; returns whether a token limit ended it."""
        row.append_env_tokens(reply)
        limit = play.budget.next_turn(len(row.completion_ids))
        words = f"{play.seed}/{row.num_turns}"
        row.num_turns += 1
        ids = [*row.prompt_ids, *row.completion_ids]
        sampling = {
            **batch.sampling,
            "max_tokens": limit,
            # With SkyRL's 1, vLLM's log-probability of a turn's first token would be without the end tokens.
            "min_tokens": 0,
            "stop_token_ids": list(self.chat.end_ids),
            # Engines have one seed: without this, two of them may draw the same tokens for episodes of a group.
            "seed": digest_number(words, 7),
            **biases(self._never),
        }
        request = {
            "prompt_token_ids": [ids],
            "session_ids": [play.session],
            "sampling_params": sampling,
            "cache_salt": batch.cache_salt,
        }
        if self._pictures is not None:
            features = await self._pictures.features(ids, row.pictures)
            request["mm_features"] = None if features is None else [features]
        if play.experts is not None:
            request["routed_experts_prompt_starts"] = [play.experts.prompt_start]
        answer = await self._client.generate(request, model=self._model_name)
        (written,) = answer["response_ids"]
        if play.experts is not None:
            play.experts.record_generation(
                prompt_token_count=len(ids),
                generated_token_count=len(written),
                routed_experts=answer["rollout_expert_indices"][0],
            )
        logprobs = [0.0] * len(written)
        if answer.get("response_logprobs") is not None:
            (logprobs,) = answer["response_logprobs"]
        row.append_policy_tokens(written, logprobs)
        # A step takes a thread once its session is open, since the threads may be all that others wait in.
        await opening
        return written, is_cut(written, limit, self.chat.end_ids, batch.is_stop)

    def _record(self, play: _Play) -> PlayedEpisode:
        tokens = tokens_of(play.token_rows.all)
        prompt = self.chat.prompt_text(play.token_rows.all[0].prompt_ids)
        return PlayedEpisode(play.task, play.sample, play.episode, tokens, prompt)

    def _output(self, plays: Sequence[_Play], batch: _Batch) -> dict[str, Any]:
        """SkyRL's GeneratorOutput; an episode of several rows has several entries, one after the other."""
        pairs = self._rows(plays)
        rewards = [self._rewards(play, row) for play, row in pairs]
        masks = [self._mask(play, row) for play, row in pairs]
        responses = [row.completion_ids for _, row in pairs]
        is_step_wise = self._cfg.step_wise_trajectories
        experts = [play.routed_experts() for play in plays]
        return {
            "prompt_token_ids": [row.prompt_ids for _, row in pairs],
            "response_ids": responses,
            "rewards": rewards,
            "loss_masks": masks,
            "stop_reasons": [_stop_reason(play) for play, _ in pairs],
            # Those of SkyRL's own generator; xp's are made of the episodes.
            "rollout_metrics": {},
            "rollout_logprobs": None
            if batch.sampling.get("logprobs") is None
            else [row.logprobs for _, row in pairs],
            "trajectory_ids": [play.trajectory_id for play, _ in pairs] if is_step_wise else None,
            "trajectory_generation_times": [play.seconds for play, _ in pairs],
            "trajectory_time_splits": None,
            "rollout_expert_indices": experts if any(e is not None for e in experts) else None,
            "rollout_sample_support": None,
            "is_last_step": [
                number == len(play.token_rows.all) - 1
                for play in plays
                for number in range(len(play.token_rows.all))
            ]
            if is_step_wise
            else None,
            "env_metrics": None,
        }

    def _rows(self, plays: Sequence[_Play]) -> list[tuple[_Play, Conversation]]:
        """Each row with its episode."""
        return [(play, trainable(self.chat, row)) for play in plays for row in play.token_rows.all]

    def _rewards(self, play: _Play, row: Conversation) -> list[float]:
        """The settled reward on a row's last token; XpTrainer adds the penalty for length later: dynamic sampling must
        not take it for variance. Of several rows SkyRL reads the last one's."""
        rewards = [0.0] * len(row.completion_ids)
        rewards[-1] = play.episode.settle().task_reward or 0.0
        return rewards

    def _mask(self, play: _Play, row: Conversation) -> list[int]:
        if is_left_out(play.episode.settle(), self._spec.algorithm):
            return [0] * len(row.mask)
        return row.mask

    def _in_thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, call)


def _stop_reason(play: _Play) -> str:
    status = play.episode.settle().status
    if status is EpisodeStatus.VOID:
        return VOID
    return "length" if status is EpisodeStatus.TRUNCATED else "stop"
