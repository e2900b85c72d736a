"""SkyRL's trainer with xp's order of tasks and xp's metrics; void episodes are excluded from every mean."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from skyrl.train.trainer import RayPPOTrainer, run_on_each_node

from xp.backends.skyrl.worker.advantages import by_episode, critic_weights, gae
from xp.backends.skyrl.worker.checkpoints import FORM, prune, prune_exports, save_policy
from xp.backends.skyrl.worker.config import SkyRLTrainStageConfig
from xp.backends.skyrl.worker.generator import VOID
from xp.backends.skyrl.worker.prompts import DrawnPrompts
from xp.backends.skyrl.worker.steps import ModelEvaluation, SkyRLStepLog
from xp.episode.advantages import (
    DISTILL_KL,
    AdvantageFn,
    check_not_negative,
    differ,
    distilled,
    of_groups,
    without_variance,
)
from xp.episode.rewards import Overlong
from xp.lib.atomic import write_atomically
from xp.lib.progress import evaluation_bar
from xp.spec import RatioFrom
from xp.tasks.curriculum import FILE
from xp.worker.best import BestKeeper
from xp.worker.importance import metrics, weigh
from xp.worker.played import PlayedEpisode
from xp.worker.publish import seal
from xp.worker.skyrl_names import AT_THE_END, has_native_correction
from xp.worker.stage import AFTER, BEFORE
from xp.worker.trained import never_filled

IS_VOID = "xp_is_void"
SHARES = "xp_shares"
OVER_EPISODES = ("sequence_mean", "seq_mean_token_sum_norm")
"""SkyRL's reductions that divide by the number of an update's episodes."""
CRITIC_FIELDS = ("sequences", "attention_mask", "response_mask", "loss_mask", "values", "returns")


class XpTrainer(RayPPOTrainer):  # type: ignore[misc]
    """SkyRL's trainer, whose tracker is a SkyRLStepLog and whose generator is an XpGenerator.

    Args:
        config: of the stage.
        rule: computes advantages from a step's rewards; None if SkyRL's own estimator or a critic does.
        keeper: keeps the best model. None means that there is no best model, and that training does not stop early.
        evaluation: records the evaluations before and after the training. None means that nothing is held out.
        parts: SkyRL's own arguments.
    """

    tracker: SkyRLStepLog
    dynamic_sampling_state: Any
    _node_ids: Any

    def __init__(
        self,
        config: SkyRLTrainStageConfig,
        rule: AdvantageFn | None,
        keeper: BestKeeper | None,
        evaluation: ModelEvaluation | None = None,
        **parts: Any,
    ) -> None:
        self._rule = rule
        self._keeper = keeper
        self._evaluation = evaluation
        self._spec = config.spec
        self._overlong = Overlong.of(config.spec)
        tasks = parts.get("train_dataset")
        self._curriculum = tasks.curriculum if isinstance(tasks, DrawnPrompts) else None
        self._distill = config.spec.algorithm.distill  # whose teacher is SkyRL's reference model
        super().__init__(**parts)

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        """Builds a loader without SkyRL's shuffling: the view is already in xp's order, as for all trainers."""
        trainer = self.cfg.trainer
        self.train_dataloader = self._ordered_loader(self._spec.training.prompts_per_round)
        steps = len(self.train_dataloader) * trainer.epochs
        self.total_training_steps = min(steps, trainer.max_training_steps or steps)

    def _ordered_loader(self, batch_size: int) -> Any:
        """Loader of batches of `batch_size` prompts, in the view's order."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(
            self.train_dataset,
            batch_size=batch_size,
            shuffle=False,
            drop_last=True,
            collate_fn=self.train_dataset.collate_fn,
            num_workers=0,
        )

    def _remove_tail_data(self, entries: list[Any]) -> list[Any]:
        """All prompts of a round: a round is not an update's batch."""
        return entries

    def load_checkpoints(self) -> Any:
        checkpoint = super().load_checkpoints()
        if self._curriculum is not None and checkpoint[1] is not None:
            self._curriculum.restore(Path(checkpoint[1], FILE))
        if checkpoint[0] == self.total_training_steps:
            # With dynamic sampling, the loader has tasks for another step.
            self.cfg.trainer.epochs = 0
        self.tracker.continue_after(checkpoint[0])
        return checkpoint

    def save_checkpoints(self) -> str:
        """SkyRL's method, after the curriculum's state is written: a checkpoint that is named as the latest has it."""
        if self._curriculum is not None:
            folder = Path(self.cfg.trainer.ckpt_path, FORM.format(self.global_step))
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / FILE, self._curriculum.state(self.global_step).to_json())
        return str(super().save_checkpoints())

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:  # noqa: N803
        """SkyRL's method, with xp's own workers under FSDP."""
        if self.cfg.trainer.strategy == "fsdp":
            from xp.backends.skyrl.worker import workers

            PolicyWorker = workers.TiedPolicyWorker  # noqa: N806
            CriticWorker = workers.WeighingCriticWorker  # noqa: N806
            RefWorker = workers.TemperedRefWorker  # noqa: N806
        super().build_models(PolicyWorker, CriticWorker, RefWorker)
        step = self.dispatch.optim_step
        self.dispatch.optim_step = lambda name: (
            step(name) if name == "critic" else self.tracker.count_update(step(name))
        )

    def _cleanup_old_checkpoints(self) -> None:
        """SkyRL's method, with xp's own rule of which directories are checkpoints."""
        self._node_ids = self._node_ids or self.dispatch.get_node_ids()
        checkpoints = self.cfg.trainer.ckpt_path
        keep = self.cfg.trainer.max_ckpts_to_keep
        run_on_each_node(self._node_ids, prune, checkpoints, keep)
        prune(checkpoints, keep)

    def save_models(self) -> None:
        """Saves a Hugging Face model of the full weights beside each kept checkpoint; the critic has none."""
        exports = Path(self.cfg.trainer.export_path)
        checkpoints = Path(self.cfg.trainer.ckpt_path)
        policy = exports / FORM.format(self.global_step) / "policy"
        save_policy(self, self.cfg.generator.inference_engine.model_dtype, policy)
        seal(policy, self.generator.chat.end_ids, self.generator.chat.template)
        prune_exports(exports, checkpoints)

    async def generate(self, input_batch: Any) -> Any:
        """Plays a step's episodes and logs their results; raises XpError(UNHEALTHY) if too many are void."""
        began = time.monotonic()
        output = await super().generate(input_batch)
        episodes = self.generator.played(input_batch)
        self.tracker.episodes(episodes, self.global_step, time.monotonic() - began)
        if self._curriculum is not None:
            played = [episode.played() for episode in episodes]
            self.all_metrics |= self._curriculum.settle(self.global_step - 1, played)
        return output

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Evaluates the current policy on held-out tasks; returns {} to SkyRL, as xp logs the results itself.

        The evaluation after the last step is that of the trained model, when this is published.
        """
        if self.cfg.trainer.eval_before_train:
            self.cfg.trainer.eval_before_train = False
            evaluation = self._evaluation
            if self.global_step == 0 and evaluation is not None and evaluation.is_due(BEFORE):
                evaluation.add(BEFORE, await self._held_out(0))
        elif self.global_step < self.total_training_steps:
            reward = self.tracker.held_out(await self._held_out(self.global_step), self.global_step)
            if self._keeper is not None:
                await self._consider(self._keeper, reward)
        return {}

    async def evaluate_trained(self) -> None:
        """Evaluates the trained model, which is published."""
        if self._evaluation is None or not self._evaluation.is_due(AFTER):
            return
        await self.dispatch.save_weights_for_sampler()
        played = self._evaluation.add(AFTER, await self._held_out(0))
        step = min(self.global_step, self.total_training_steps)
        if self.cfg.trainer.eval_interval == AT_THE_END or step < self.total_training_steps:
            return  # no evaluation is due during the training, or it has ended early
        reward = self.tracker.evaluated(played, step)
        if self._keeper is not None:
            await self._consider(self._keeper, reward)

    async def _held_out(self, step: int) -> list[PlayedEpisode]:
        episodes: list[PlayedEpisode] = []
        with evaluation_bar("evaluate", len(self.eval_dataset)) as bar:
            async for batch in self.generator.held_out(self.eval_dataloader, self.cfg, step):
                episodes += batch
                bar.update(len(batch))
        if self._evaluation is not None:
            await asyncio.to_thread(self._evaluation.score_groups, episodes)
        return episodes

    async def _consider(self, keeper: BestKeeper, reward: float) -> None:
        """Keeps the model if it is the best so far; else, after `patience`, ends the training by SkyRL's limit."""
        if not keeper.is_better(reward):
            stop = keeper.stop(self.global_step)
            if stop is not None:
                print(stop, flush=True)
                self.cfg.trainer.max_training_steps = self.global_step
            return
        staged = keeper.begin()
        if keeper.rule.keep_best:
            # On shared accelerators the engine frees memory first, as it does for an update.
            if self.colocate_all:
                await self.inference_engine_client.sleep()
            save_policy(self, self.cfg.generator.inference_engine.model_dtype, staged)
            if self.colocate_all:
                await self.dispatch.save_weights_for_sampler()
        chat = self.generator.chat
        keeper.finish(self.global_step, reward, chat.end_ids, chat.template)

    def handle_dynamic_sampling(self, generator_output: Any, uids: Any) -> Any:
        """SkyRL's method by xp's rule of variance: SkyRL's takes void for 0, and the rounding of a mean for variance.

        Raises:
            XpError: (NOT_TRAINED) a step is not full after SkyRL's limit of batches.
        """
        groups = of_groups(episode_totals(generator_output), uids)
        varied_groups = {uid for uid, valid in groups.items() if differ(valid)}
        for uid, rewards in zip(uids, generator_output["rewards"], strict=True):
            rewards[-1] = rewards[-1] if uid in varied_groups else 0.0
        if varied_groups:
            with suppress(RuntimeError):  # the limit
                return super().handle_dynamic_sampling(generator_output, uids)
            state = self.dynamic_sampling_state
        else:  # SkyRL's own filter fails if it keeps nothing.
            state = self.dynamic_sampling_state or {"sample_batch_count": 0}
            self.dynamic_sampling_state = state
            state["sample_batch_count"] += 1
            most = self.cfg.trainer.algorithm.dynamic_sampling.max_sample_batches
            if state["sample_batch_count"] != most:
                return generator_output, uids, True
        training = self._spec.training
        num_groups = training.prompts_per_round * state["sample_batch_count"]
        raise never_filled(
            state.get("num_prompts_in_batch", 0), training.prompts_per_step, num_groups
        )

    def convert_to_training_input(self, generator_output: Any, uids: Any) -> Any:
        """SkyRL's method, with the penalty for length, which its dynamic sampling has not seen, and without groups
        that have no variance, if so configured."""
        if self._overlong is not None:
            for rewards, reason in zip(
                generator_output["rewards"], generator_output["stop_reasons"], strict=True
            ):
                rewards[-1] += 0.0 if reason == VOID else self._overlong.penalty(len(rewards))
        totals = episode_totals(generator_output)
        if self.cfg.trainer.algorithm.advantage_estimator == "maxrl":
            check_not_negative(total for total in totals if total is not None)
        if self.cfg.trainer.algorithm.zero_variance_filter:
            masks = generator_output["loss_masks"]
            generator_output["loss_masks"] = [
                [0] * len(mask) if is_flat else mask
                for mask, is_flat in zip(masks, without_variance(totals, uids), strict=True)
            ]
        data = super().convert_to_training_input(generator_output, uids)
        # SkyRL adds masked rows to episodes of several rows, for its processes.
        num_added = data.metadata.get("pad_size", 0)
        data.metadata[IS_VOID] = [total is None for total in totals] + [True] * num_added
        return data

    def fwd_logprobs_values_reward(self, training_input: Any) -> Any:
        output = super().fwd_logprobs_values_reward(training_input)
        self.tracker.compared(self.all_metrics, self.global_step)
        return output

    def apply_reward_kl_penalty(self, data: Any) -> Any:
        """Takes the penalty from the rewards, unless SkyRL's reference is the teacher, which does not change them."""
        if self._distill is not None:
            return data
        return super().apply_reward_kl_penalty(data)

    def compute_advantages_and_returns(self, data: Any) -> Any:
        """Computes advantages, and sets what the loss takes of the engine's log-probabilities."""
        data.metadata[SHARES] = _shares(data)
        data = self._estimated(data)
        if self._distill is not None:
            mask = data["loss_mask"]
            teacher = data["base_action_log_probs"]
            policy = data["action_log_probs"]
            advantages, gap = distilled(self._distill, data["advantages"], teacher, policy, mask)
            data["advantages"] = data["returns"] = advantages
            self.all_metrics[DISTILL_KL] = float(gap / mask.sum().clamp(min=1))
        if self._spec.algorithm.is_corrected:
            gap = data["action_log_probs"] - data["rollout_logprobs"]
            weighed = weigh(self._spec.algorithm, gap, data["loss_mask"])
            self.all_metrics |= metrics(weighed.sums())
            if not has_native_correction(self._spec.algorithm):
                data["advantages"] = data["advantages"] * weighed.weights
        if self._spec.algorithm.ratio_from is RatioFrom.ENGINE:
            data["action_log_probs"] = data["rollout_logprobs"]
        return data

    def _estimated(self, data: Any) -> Any:
        """Computes advantages by the rule or the critic if there is one, else by SkyRL's estimator.

        Void episodes have none.
        """
        if self.has_critic:
            settings = self.cfg.trainer.algorithm
            data["advantages"], data["returns"] = gae(
                data["rewards"], data["values"], data["loss_mask"], settings.gamma, settings.lambd
            )
            return data
        if self._rule is not None:
            advantages = by_episode(
                self._rule,
                data["rewards"],
                data["loss_mask"],
                data.metadata["uids"],
                data.metadata[IS_VOID],
            )
            data["advantages"] = data["returns"] = advantages
            return data
        return self._skyrls_estimate(data)

    def _skyrls_estimate(self, data: Any) -> Any:
        """Puts void episodes into a separate group of zero rewards: every estimator gives them the advantage zero."""
        uids: Sequence[str] = data.metadata["uids"]
        is_void = data.metadata[IS_VOID]
        groups = [f"{uid}/{VOID}" if void else uid for uid, void in zip(uids, is_void, strict=True)]
        is_last: Sequence[bool] = data.metadata.get("is_last_step") or [True] * len(groups)
        sizes = Counter(
            group for group, is_last_row in zip(groups, is_last, strict=True) if is_last_row
        )
        for row, group in enumerate(groups):
            if sizes[group] == 1:
                # SkyRL's baseline of a group of one is 0: its whole reward would be its advantage.
                data["rewards"][row] = 0.0
        data.metadata["uids"] = groups
        return super().compute_advantages_and_returns(data)

    def _normalize_advantages(
        self, data: Any, boundaries: Any, prompt_boundaries: Any = None
    ) -> Any:
        """Corrects SkyRL's divisor, an update's number of rows, to that of its episodes: excluded ones (void,
        truncated) do not count, and one of several rows counts once."""
        data = super()._normalize_advantages(data, boundaries, prompt_boundaries)
        reduction = self.cfg.trainer.algorithm.loss_reduction
        for begin, end in boundaries if reduction in OVER_EPISODES else ():
            shares = data.metadata[SHARES][begin:end]
            weights = shares if reduction == "sequence_mean" else torch.ones_like(shares)
            scale = weights * (end - begin) / shares.sum().clamp(min=1)
            data["advantages"][begin:end] *= scale[:, None].to(data["advantages"])
        return data

    def _execute_training_step(self, model: str, data: Any) -> dict[str, float]:
        """Weighs the critic's tokens, so that its loss is aggregated as the policy's."""
        if model == "critic":
            updates = data.metadata["critic_mini_batch_boundaries"]
            data = data.select(CRITIC_FIELDS)
            data["loss_mask"] = critic_weights(
                data["loss_mask"], updates, self.cfg.trainer.algorithm
            )
        values: dict[str, float] = super()._execute_training_step(model, data)
        self.tracker.updated(model, values, self.global_step)
        return values


def _shares(data: Any) -> torch.Tensor:
    """Share of each row in the trained tokens of its episode; the rows of an episode follow one another."""
    tokens = data["loss_mask"].sum(-1).double()
    is_last = torch.tensor(data.metadata.get("is_last_step") or [True] * len(tokens))
    episodes = is_last.cumsum(0) - is_last.long()
    totals = torch.zeros_like(tokens).index_add(0, episodes, tokens)
    return tokens / totals[episodes].clamp(min=1)


def episode_totals(generator_output: Any) -> list[float | None]:
    """Reward of each episode. None means void."""
    episodes = zip(generator_output["rewards"], generator_output["stop_reasons"], strict=True)
    return [None if reason == VOID else sum(rewards) for rewards, reason in episodes]
