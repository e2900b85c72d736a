"""SkyRL's own generator, driving Episodes: xp's hooks add only what SkyRL's loop lacks."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInput
from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
    get_sampling_params_for_backend,
)
from skyrl.train.generators.skyrl_gym_generator import (
    SkyRLGymGenerator,
    StepWiseOutput,
    TrajectoryOutput,
)
from skyrl.train.generators.utils import prepare_generator_input

from xp.backends.skyrl.worker.config import ENV_CLASS
from xp.backends.skyrl.worker.env import CHAT, RUNNING
from xp.backends.skyrl.worker.running_episode import CURRENT, RunningEpisode, task_of
from xp.engines.completions import biases
from xp.engines.conversation import Conversation, GeneratedTurn
from xp.engines.rows import Rows, play_rows
from xp.episode.episode import Episode
from xp.episode.mixture import EnvironmentMixture
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.rewards import Overlong
from xp.episode.tokens import ChatTokens
from xp.models.files import config_of
from xp.spec import RunSpec
from xp.worker.media import placeholder_ids
from xp.worker.played import PlayedEpisode, live_prompt
from xp.worker.token_budget import evaluation_sampling, evaluation_seed, is_cut

STEP: ContextVar[tuple[str, int]] = ContextVar("STEP", default=("", 0))
"""SkyRL's phase and step of the batch whose episodes are played."""
VOID = "void"
"""Stop reason of an episode without a reward; SkyRL keeps stop reasons beside the samples on every path."""


@dataclass
class _Group:
    """Episodes of one prompt of a batch."""

    size: int
    scored: asyncio.Future[None]
    """Ends when the group's rewards are settled."""
    episodes: list[Episode] = field(default_factory=list)
    """The settled episodes."""


class XpGenerator(SkyRLGymGenerator):  # type: ignore[misc]
    """Plays a batch's episodes, with the same tokens as xp's other adapters.

    Args:
        parts: SkyRL's own arguments (generator_cfg, skyrl_gym_cfg, inference_engine_client, tokenizer, ...).
        chat: the policy's tokenizer.
        mix: the environments.
        spec: the run's.
    """

    def __init__(
        self, parts: dict[str, Any], chat: ChatTokens, mix: EnvironmentMixture, spec: RunSpec
    ) -> None:
        client = parts["inference_engine_client"]
        tokenizer = parts["tokenizer"]
        config = config_of(str(spec.model.path), Path(), spec.model.revision)
        never = placeholder_ids(config or {})
        # vLLM refuses biases together with guessed tokens.
        if spec.backend.engine.speculative is not None:
            never = []
        wrapped = {
            "inference_engine_client": TurnClient(client, chat, never),
            "tokenizer": OpeningTokenizer(tokenizer),
        }
        super().__init__(**parts | wrapped)
        self.chat = chat
        self._mix = mix
        self._spec = spec
        self._overlong = Overlong.of(spec)
        self._running: dict[int, RunningEpisode] = {}
        """Episodes by the object identity of SkyRL's trajectory id: an evaluation during training has equal ids."""
        self._groups: dict[int, _Group] = {}
        """Groups by the object identity of SkyRL's trajectory id."""
        self._slots = asyncio.Semaphore()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun: dict[str, tuple[int, Counter[str]]] = {}
        """Phase -> its step, and the number of episodes of that step that have begun, by task and sample."""

    async def generate(self, input_batch: Any, disable_tqdm: bool = True) -> Any:
        """Plays one batch; if one episode fails the batch, the sessions of all others are closed."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            # More episodes than sessions would fill SkyRL's thread pool with waiting calls, and no session would ever
            # end.
            self._slots = asyncio.Semaphore(self._mix.max_sessions())
        of = input_batch.get("batch_metadata")
        STEP.set(("", 0) if of is None else (of.training_phase, of.global_step))
        self._form_groups(input_batch["trajectory_ids"])
        try:
            return await super().generate(input_batch, disable_tqdm=disable_tqdm)
        finally:
            for one in input_batch["trajectory_ids"]:
                self._groups.pop(id(one)).scored.cancel()
            begun = [self._running.get(id(one)) for one in input_batch["trajectory_ids"]]
            for running in begun:
                if running is not None:
                    await self._run_in_executor_if_available(running.episode.settle)

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
        self._begun.pop("eval", None)  # two evaluations of one step have the same seeds
        for batch in loader:
            inputs, _ = prepare_generator_input(batch, 1, sampling, ENV_CLASS, "eval", step)
            await self.generate(inputs)
            yield self.played(inputs)

    def played(self, input_batch: Any) -> list[PlayedEpisode]:
        """Returns the episodes of a played batch, in its order, and removes them from this object."""
        return [self._running.pop(id(one)).played() for one in input_batch["trajectory_ids"]]

    async def agent_loop(
        self,
        prompt: Any,
        env_class: str,
        env_extras: Any,
        *args: Any,
        trajectory_id: Any = None,
        **kwargs: Any,
    ) -> Any:
        """SkyRL's loop over one episode, whose session opens while the model writes its first turn."""
        running = self._begin(env_extras, trajectory_id)
        CURRENT.set(running)
        async with self._slots:
            row = running.row
            limit = self._spec.training.max_prompt_tokens
            live = partial(live_prompt, running.episode, row.tools, self.chat, limit)
            open_session = live if running.episode.is_live else running.episode.start
            start = running.start = asyncio.ensure_future(
                self._run_in_executor_if_available(open_session)
            )
            try:
                # The prompt of the session replaces the prepared one.
                if running.episode.is_live:
                    ids = await start
                    if ids is not None:
                        running.prompt_ids = ids
                        running.prompt = self.chat.prompt_text(ids)
                if self.generator_cfg.step_wise_trajectories:
                    output = await self._play_rows(running, trajectory_id, **kwargs)
                else:
                    extras = {**env_extras, RUNNING: running, CHAT: self.chat}
                    output = await super().agent_loop(
                        prompt, env_class, extras, *args, trajectory_id=trajectory_id, **kwargs
                    )
            finally:
                await start
                await self._run_in_executor_if_available(running.episode.settle)
        # Without a slot: the other episodes of the group may need it.
        await self._score_group(running, self._groups[id(trajectory_id)])
        return self._with_result(output, running.episode.settle())

    async def _play_rows(
        self,
        running: RunningEpisode,
        trajectory_id: Any,
        sampling_params: dict[str, Any],
        **more: Any,
    ) -> StepWiseOutput:
        """Plays an episode whose program may rewrite its history, in several rows; SkyRL's loop has one.

        Args:
            running: the episode.
            trajectory_id: SkyRL's.
            sampling_params: the engine's.
            more: SkyRL's further arguments, of which the engine gets the cache's salt.
        """
        rows = running.token_rows = Rows(Conversation(list(running.prompt_ids)))

        async def write(row: Conversation) -> tuple[GeneratedTurn, bool]:
            request = InferenceEngineInput(
                prompt_token_ids=[[*row.prompt_ids, *row.completion_ids]],
                session_ids=[trajectory_id.to_string()],
                sampling_params=sampling_params,
                cache_salt=more.get("cache_salt"),
            )
            turn = await self.inference_engine_client.generate(
                request, model=self.policy_model_name
            )
            (ids,) = turn["response_ids"]
            logprobs = turn.get("response_logprobs")
            await running.start
            return GeneratedTurn(
                ids, [0.0] * len(ids) if logprobs is None else logprobs[0]
            ), running.is_cut

        run = self._run_in_executor_if_available
        await play_rows(rows, running.episode, self.chat, running.budget, write, run)
        if not rows.all[0].completion_ids:
            rows.all[0].append_env_tokens([self.chat.end_id])
        return StepWiseOutput([self._of_row(one, sampling_params) for one in rows.all])

    def _of_row(self, row: Conversation, sampling_params: Mapping[str, Any]) -> TrajectoryOutput:
        return TrajectoryOutput(
            response_ids=row.completion_ids,
            reward=0.0,
            stop_reason="stop",
            loss_mask=row.mask,
            prompt_ids=row.prompt_ids,
            rollout_logprobs=None if sampling_params.get("logprobs") is None else row.logprobs,
            env_metrics={},
        )

    async def _run_in_executor_if_available(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """SkyRL's; a step takes a thread once its session is open, since the threads may be all that others wait in."""
        start = getattr(CURRENT.get(), "start", None)
        if start is not None and getattr(func, "__name__", "") == "step":
            await start
        return await super()._run_in_executor_if_available(func, *args, **kwargs)

    def _form_groups(self, trajectory_ids: Sequence[Any]) -> None:
        sizes = Counter(one.instance_id for one in trajectory_ids)
        made = {
            name: _Group(size, asyncio.get_running_loop().create_future())
            for name, size in sizes.items()
        }
        self._groups |= {id(one): made[one.instance_id] for one in trajectory_ids}

    async def _score_group(self, running: RunningEpisode, group: _Group) -> None:
        """Waits for the rewards of an episode's group; the last episode that ends has them computed."""
        if group.size == 1 or not self._mix.scores_groups(running.row.env):
            return
        group.episodes.append(running.episode)
        if len(group.episodes) < group.size:
            await group.scored
            return
        await asyncio.wrap_future(self._mix.score_group(group.episodes))
        group.scored.set_result(None)

    def get_obs_ids_from_obs(self, new_obs: Any, is_done: bool) -> list[int]:
        """Token ids of the environment's reply, by the model's own template.

        SkyRL's own function supports no cut turns and no tools.
        """
        running = CURRENT.get()
        assert running is not None  # called by agent_loop alone
        return [] if is_done else running.reply_ids

    def _post_process_agent_loop_output(
        self, output: Any, env_extras: Any, trajectory_id: Any
    ) -> Any:
        """Puts the settled reward on the last token: SkyRL may have left its loop without a last `env.step`."""
        running: RunningEpisode = env_extras[RUNNING]
        return self._with_result(output, running.episode.settle())

    def _with_result(self, output: Any, outcome: EpisodeResult) -> Any:
        if isinstance(output, StepWiseOutput):
            for row in (
                output.step_outputs
            ):  # SkyRL reads the last one's; xp's rules need no rows to be skipped.
                self._with_result(row, outcome)
            return output
        output.reward = [0.0] * len(output.response_ids)
        # XpTrainer adds the penalty for length, which is no variance for dynamic sampling.
        output.reward[-1] = outcome.task_reward or 0.0
        if outcome.status is EpisodeStatus.VOID:
            output.stop_reason = VOID
        is_masked = (
            self._spec.algorithm.mask_truncated and outcome.status is EpisodeStatus.TRUNCATED
        )
        if outcome.status is EpisodeStatus.VOID or is_masked:
            output.loss_mask = [0] * len(output.loss_mask)
        return output

    def _begin(self, env_extras: Any, trajectory_id: Any) -> RunningEpisode:
        row = task_of(env_extras)
        ids = self.chat.prompt(row.messages, row.tools)
        sample = trajectory_id.repetition_id
        seed = self._seed_of(row.task_id, sample)
        prompt = self.chat.prompt_text(ids)
        is_held_out = STEP.get()[0] == "eval"
        if is_held_out:
            limits = evaluation_sampling(self._spec)
        else:
            limits = self._spec.training
        running = RunningEpisode(row, sample, self._mix.episode(row), ids, limits, seed, prompt)
        running.episode.count_by(running.tokens, None if is_held_out else self._overlong)
        self._running[id(trajectory_id)] = running
        return running

    def _seed_of(self, task_id: str, sample: int) -> str:
        """Seed of an episode; a task that a step plays again has other ones."""
        phase, step = STEP.get()
        if phase not in self._begun or self._begun[phase][0] != step:
            self._begun[phase] = (step, Counter())
        begun = self._begun[phase][1]
        name = f"{task_id}/{sample}"
        begun[name] += 1
        if phase == "eval" and step == 0:  # of a whole model, as xp.engines.evaluate plays it
            return f"{evaluation_seed(self._spec)}/{task_id}/{begun[name] - 1}"
        return f"{self._spec.seed}/{phase}/{step}/{name}/{begun[name]}"


class TurnClient:
    """SkyRL's inference client; limits a turn to the tokens left, seeds it, and returns its text unchanged.

    Args:
        client: SkyRL's.
        chat: the policy's tokenizer.
        never: tokens that are never sampled.
    """

    def __init__(self, client: Any, chat: ChatTokens, never: Sequence[int] = ()) -> None:
        self._client = client
        self._never = never
        self._chat = chat

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Generates one turn of one episode."""
        running = CURRENT.get()
        assert running is not None  # called by agent_loop alone
        limit = running.budget.next_turn(running.num_response)
        limited = {
            **input_batch["sampling_params"],
            "max_tokens": limit,
            "stop_token_ids": list(self._chat.end_ids),
            # Engines have one seed: without this, two of them may draw the same tokens for episodes of a group.
            "seed": running.next_seed(),
            **biases(self._never),
        }
        if (
            running.episode.is_live and running.episode.is_over
        ):  # Its session has no prompt that can be played.
            return self._no_turn(limited)
        output = await self._client.generate(
            {**input_batch, "sampling_params": limited}, *args, **kwargs
        )
        ids: Sequence[int] = output["response_ids"][0]
        is_stop = self._chat.holds_one_of(limited.get("stop") or ())
        running.wrote(ids, is_cut=is_cut(ids, limit, self._chat.end_ids, is_stop))
        # SkyRL's text is without special tokens: a model that writes one in the middle of a call would be misread.
        return {**output, "responses": [self._chat.text(ids)]}

    def _no_turn(self, sampling: Any) -> dict[str, Any]:
        """A turn of one token, because SkyRL's loop requires one."""
        return {
            "responses": [""],
            "response_ids": [[self._chat.end_id]],
            "stop_reasons": ["stop"],
            "response_logprobs": None if sampling.get("logprobs") is None else [[0.0]],
        }


class OpeningTokenizer:
    """A tokenizer that gives SkyRL's loop the prompt of the current episode, which SkyRL would render without tools.

    Outside of an episode, SkyRL renders prompts to count them, and a dialogue of its own, which some chat templates
    refuse; neither is used.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __reduce__(self) -> Any:
        return OpeningTokenizer, (self._tokenizer,)  # SkyRL's dataset sends it to another process.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(self, conversation: Any, **arguments: Any) -> list[int]:
        del conversation, arguments
        running = CURRENT.get()
        if running is None:
            return []
        return list(running.prompt_ids)
