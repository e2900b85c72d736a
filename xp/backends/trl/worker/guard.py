"""GRPOTrainer that applies no update with a non-finite loss or gradient, or with tokens of other weights.

Its means are over the tokens and episodes of an update (xp.backends.trl.worker.means).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from xp.backends.trl.worker.lora import without_dropout
from xp.backends.trl.worker.means import (
    SHARE,
    Counts,
    rescaled,
    row_parts,
    shares,
    trained,
    update_counts,
    update_means,
    weigh_metrics,
)
from xp.backends.trl.worker.resumed_weights import WholeCheckpoints
from xp.backends.trl.worker.steps import TRLStepLog
from xp.backends.trl.worker.teacher import Teacher
from xp.episode.advantages import DISTILL_KL, AdvantageFn, distilled, of_valid
from xp.episode.picture_reader import PictureReader
from xp.errors import ExitCode, XpError
from xp.lib.patching import replaced
from xp.spec import ImportanceMask, RatioFrom
from xp.worker.engines.kv_cache import without_padding_mask
from xp.worker.importance import metrics, weigh
from xp.worker.learning_rate import SCHEDULES, make_scheduler
from xp.worker.picture_passes import ROWS, showing_pictures

IDS_AND_MASK = ("ids", "mask")
"""Ends of TRL's keys of prompts and completions."""
POLICY_LOGPS = "xp_policy_logps"
"""Key of the policy's log-probabilities before the update."""


def _shards(model: Any) -> dict[str, torch.Tensor]:
    """Parameter's name -> this rank's part of it: under FSDP2 a shard, otherwise the whole."""
    shards = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        shards[name] = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return shards


class GuardedTrainer(WholeCheckpoints, GRPOTrainer):  # type: ignore[misc]
    """Checks each update with its log, after the gradient's norm is known and before the optimizer's step.

    Args:
        log: log of the run; raises if the run must stop.
        teacher: teacher of on-policy distillation. None means that there is none.
        rule: function that computes the advantages. None means that GRPOTrainer does.
        pictures: the pictures as the policy reads them. None means that there are none.
        parts: GRPOTrainer's own arguments.
    """

    lr_scheduler: Any
    use_vllm: bool
    _tr_loss: torch.Tensor
    """Trainer's own sum of losses since its last log: of this update."""

    def __init__(
        self,
        log: TRLStepLog,
        teacher: Teacher | None = None,
        rule: AdvantageFn | None = None,
        pictures: PictureReader | None = None,
        **parts: Any,
    ) -> None:
        self._xp_log = log
        self._xp_algorithm = log.spec.algorithm
        self._xp_teacher = teacher
        self._xp_rule = rule
        self._xp_pictures = pictures
        self._xp_row_pictures: list[list[str]] = []
        """Digests of the pictures of each row of this process, of its last rollout step."""
        self._xp_logps: torch.Tensor | None = None
        """Log-probabilities of the last forward pass."""
        self._xp_gap = [0.0, 0.0]
        """Sum of gaps and number of tokens of a rollout step, before its first update."""
        self._xp_counts = Counts(1, 1, [])
        """Tokens and episodes of the current update."""
        self._xp_rewards = torch.empty(0)
        """Rewards of the rollout step's rows, over all ranks; NaN: void, or not the first row of its episode."""
        self._xp_inputs: list[dict[str, Any]] = []
        """TRL's own list of this process's inputs, while it scores them."""
        self._xp_episodes: list[int] = []
        """Number of the episode of each row of this process."""
        self._xp_part = 0
        """Number of the next part of a micro-batch in the current update."""
        super().__init__(**parts)
        self._xp_has_adapters = hasattr(self.model, "peft_config")
        if teacher is not None:
            teacher.prepare(self)
        # TRL corrects only the weight of vLLM's samples; samples of an older policy need it for any engine.
        self.use_vllm = self.use_vllm or self._xp_algorithm.is_corrected

    def create_accelerator_and_postprocess(self) -> None:
        """Trainer's method; what FSDP2 computes, and the reference's attention, are set before GRPOTrainer loads its
        reference model."""
        super().create_accelerator_and_postprocess()
        keep_float32(self.accelerator)
        # GRPOTrainer would ask for the policy's by name, which transformers refuses if a part for sound has no such one.
        self.args.model_init_kwargs = {"attn_implementation": None}

    def _generate(self, prompts: Any) -> Any:
        if self._xp_log.is_ahead:
            # TRL would send weights to an engine that is generating; AsyncRollouts sends them instead.
            self._last_loaded_step = self.state.global_step
        *parts, _, _ = super()._generate(prompts)
        self._xp_episodes = parts[5].pop("episodes")
        self._xp_row_pictures = parts[5].pop("pictures", [])
        # An episode may have several rows. TRL reads both of its lists again, for a row each.
        further = len(self._xp_episodes) - len(prompts)
        prompts += prompts[:1] * further
        self._xp_inputs += [dict(self._xp_inputs[0]) for _ in range(further)]
        return *parts, None, []

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's method without its removal of old checkpoints, which takes directories of similar names.

        xp.backends.trl.worker.checkpoints.Seal removes them, once the new one is sealed. A reference that is a copy of
        an earlier policy is a part of the state; each rank writes its own shards of it.
        """
        with replaced(self.args, save_total_limit=None):
            super()._save_checkpoint(model, trial)
        if self.args.sync_ref_model:
            directory = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
            torch.save(_shards(self.ref_model), self._reference_file(directory))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Trainer's method, with all weights, and the reference of the checkpoint.

        Raises:
            XpError: the checkpoint has no shards of this rank.
        """
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not self.args.sync_ref_model:
            return
        file = self._reference_file(Path(resume_from_checkpoint))
        if not file.is_file():
            raise XpError(
                f"{file} is missing: training.reference_every needs the reference of the checkpoint; resume with the"
                " number of processes that wrote it, or start a new run",
                ExitCode.RUN_DIR,
            )
        saved = torch.load(file, map_location="cpu", weights_only=True)
        for name, shard in _shards(self.ref_model).items():
            shard.copy_(saved[name])

    def _reference_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"reference.rank_{self.args.process_index}.pt"

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """xp's schedules, whose warm-up begins above 0; transformers' own for another schedule from an override."""
        schedule = str(self.args.lr_scheduler_type.value).removesuffix("_with_warmup")
        if (
            self.lr_scheduler is not None
            or schedule not in SCHEDULES
            or self.args.lr_scheduler_kwargs
        ):
            return super().create_scheduler(num_training_steps, optimizer)
        warmup = self.args.get_warmup_steps(num_training_steps)
        minimum = self._xp_log.spec.training.min_learning_rate
        self.lr_scheduler = make_scheduler(
            schedule, optimizer or self.optimizer, warmup, num_training_steps, minimum
        )
        self._created_lr_scheduler = True
        return self.lr_scheduler

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        rewards = super()._calculate_rewards(*args, **kwargs)
        self._xp_rewards = rewards[:, 0]
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._xp_inputs = inputs
        output = super()._generate_and_score_completions(inputs)
        first = self.accelerator.process_index * len(inputs)
        share = slice(first, first + len(inputs))
        size = self.num_generations
        if self._xp_rule is None:
            advantages = rescaled(
                output["advantages"], self._xp_rewards, share, size, str(self.scale_rewards)
            )
        else:
            scores = self._xp_rewards.tolist()
            rewards = [None if math.isnan(score) else score for score in scores]
            groups = [str(at // size) for at in range(len(rewards))]
            tokens = self.accelerator.gather(trained(output).sum(1)).tolist()
            estimates = of_valid(self._xp_rule, rewards, groups, list(map(int, tokens)))
            advantages = output["advantages"].new_tensor(estimates[share])
        # Each row of an episode has its advantage; further rows have no reward of their own.
        advantages = advantages[self._xp_episodes]
        of_rows = shares(output, self._xp_episodes)
        if self.loss_type in ("grpo", "sapo"):  # the mean of each row
            advantages = advantages * of_rows.to(advantages)
        output |= {"advantages": advantages, SHARE: of_rows}
        if self._xp_pictures is not None:
            output[ROWS] = self._numbers(output["prompt_ids"])
        return self._corrected(self._distilled(output))

    @staticmethod
    def _numbers(rows: torch.Tensor) -> torch.Tensor:
        """The number of each row, [rows, 1]."""
        return torch.arange(len(rows), device=rows.device)[:, None]

    def _distilled(self, output: dict[str, Any]) -> dict[str, Any]:
        """The output with an advantage for each token, if there is a teacher."""
        if self._xp_teacher is None:
            return output
        parts = [
            torch.cat([output[f"{part}_{name}"] for part in ("prompt", "completion")], 1)
            for name in IDS_AND_MASK
        ]
        num_tokens = output["completion_ids"].shape[1]
        size = self.args.per_device_train_batch_size

        def logprobs(model: Any) -> torch.Tensor:
            with (
                torch.no_grad(),
                disable_gradient_checkpointing(self.model, self.args.gradient_checkpointing_kwargs),
            ):
                scored: torch.Tensor = self._get_per_token_logps_and_entropies(
                    model, *parts, num_tokens, size
                )[0]
            return scored

        teacher = self._xp_teacher.logprobs(output, logprobs)
        policy = output.get("old_per_token_logps")
        if policy is None:
            policy = logprobs(self.model)
        mask = trained(output)
        of_reward = output["advantages"][:, None]
        advantages, gap = distilled(self._xp_teacher.rule, of_reward, teacher, policy, mask)
        total, count = self.accelerator.reduce(
            torch.stack([gap, mask.sum()]).float(), reduction="sum"
        ).tolist()
        self._xp_log.measured({DISTILL_KL: total / max(1.0, count)})
        return {**output, "advantages": advantages}

    def _corrected(self, output: dict[str, Any]) -> dict[str, Any]:
        """The output with xp's importance weights, which a mask needs, or with the engine's log-probabilities as the
        old ones."""
        if "old_per_token_logps" in output:
            output[POLICY_LOGPS] = output["old_per_token_logps"]
            self._add_gap(output, output[POLICY_LOGPS])
        if self._xp_algorithm.ratio_from is RatioFrom.ENGINE:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        if self._xp_algorithm.is_corrected:
            gap = output[POLICY_LOGPS] - output["sampling_per_token_logps"]
            weighed = weigh(self._xp_algorithm, gap, trained(output))
            sums = self.accelerator.reduce(torch.stack(weighed.sums()).float(), reduction="sum")
            self._xp_log.measured(metrics(sums))
            if self._xp_algorithm.importance_mask is not ImportanceMask.NONE:
                output["importance_sampling_ratio"] = weighed.weights
        return output

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        config = self.accelerator.unwrap_model(model).config
        # Log-probabilities before an update are the policy's own, not those of a sample of its adapters.
        is_before = self._xp_has_adapters and not torch.is_grad_enabled()
        dropout = without_dropout(model) if is_before else nullcontext()
        pictures = self._showing_pictures(model, input_ids, kwargs)
        with dropout, pictures, without_padding_mask(model, config, attention_mask):
            output = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, *args, **kwargs
            )
        self._xp_logps = output[0].detach()
        return output

    def _showing_pictures(
        self, model: Any, input_ids: torch.Tensor, arguments: dict[str, Any]
    ) -> AbstractContextManager[None]:
        """Context manager of forward passes with the pictures of their rows: of those that `arguments` has the numbers
        of, else of all rows of this process, in their order."""
        if self._xp_pictures is None:
            return nullcontext()
        if arguments.get(ROWS) is None:
            arguments[ROWS] = self._numbers(input_ids)
        return showing_pictures(
            model,
            self._xp_pictures,
            self._xp_row_pictures,
            is_sharded=self.is_fsdp_enabled,
            trains_vision=self._xp_log.spec.model.train_vision,
        )

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        """The loss; rows beyond the micro-batch's number are computed in parts, which need no more memory."""
        if self.model.training and self._step % self.args.gradient_accumulation_steps == 0:
            self._xp_counts = update_counts(self)
            self._xp_part = 0
        first, *further = row_parts(inputs, self.args.per_device_train_batch_size)
        total = self._loss_of_part(model, first)
        for part in further:
            self.accelerator.backward(total)
            total = self._loss_of_part(model, part) + total.detach()
        return total

    def _loss_of_part(self, model: Any, inputs: Any) -> Any:
        """The loss; also compares the engine's log-probabilities with the policy's before its first update."""
        loss = self._loss_of(model, inputs)
        # Those before the update have no dropout; TRL leaves them out where a step is one update without a correction.
        if (
            POLICY_LOGPS not in inputs
            and self._xp_logps is not None
            and self._xp_log.is_first(self.state.global_step)
        ):
            self._add_gap(inputs, self._xp_logps)
        return loss

    def _add_gap(self, inputs: Any, policy_logps: torch.Tensor) -> None:
        """Adds the gaps of these episodes' trained tokens, if the engine has returned their log-probabilities."""
        written = inputs.get("sampling_per_token_logps")
        if written is not None:
            gaps = (policy_logps - written).abs()[(trained(inputs) > 0) & ~torch.isnan(written)]
            self._xp_gap = [self._xp_gap[0] + float(gaps.sum()), self._xp_gap[1] + gaps.numel()]

    def _loss_of(self, model: Any, inputs: Any) -> Any:
        if not self.model.training:
            return super()._compute_loss(model, inputs)
        with update_means(
            self, inputs, self._xp_counts, self._xp_log.spec.algorithm.loss_length
        ) as counted:
            loss = super()._compute_loss(model, counted)
        weigh_metrics(self, self._xp_counts, self._xp_part)
        self._xp_part += 1
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The trainer's hook between clipping and the optimizer's step, where the update is checked."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self._check_gap()
        if self._xp_log.is_applied(
            self.state.global_step, self._loss(), None if norm is None else float(norm)
        ):
            return norm
        # Without gradients the optimizer's step has no effect; a NaN loss would stay in Trainer's sum.
        self.optimizer.zero_grad()
        self._tr_loss = torch.zeros_like(self._tr_loss)
        return 0.0

    def _check_gap(self) -> None:
        """Checks the gap over all ranks; all of them stop together."""
        if not self._xp_log.is_first(self.state.global_step):
            return
        dtype = torch.float64 if self.args.use_cpu else torch.float32
        gap = torch.tensor([self._xp_gap], dtype=dtype, device=self.accelerator.device)
        total, count = self.accelerator.gather(gap).sum(0).tolist()
        self._xp_gap = [0.0, 0.0]
        if count:
            self._xp_log.gap(self.state.global_step, total / count)

    def _loss(self) -> float:
        """Loss of this update over all ranks; NaN if one rank's is not finite."""
        everybody = self.accelerator.gather(self._tr_loss.detach().float().reshape(1))
        if bool(torch.isfinite(everybody).all()):
            return float(everybody.mean())
        return math.nan


def keep_float32(accelerator: Any) -> None:
    """Makes FSDP2 reduce gradients and return log-probabilities in float32; accelerate 1.15 would use bfloat16."""
    plugin: Any = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.mixed_precision_policy is None:
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plugin.mixed_precision_policy = MixedPrecisionPolicy(
        param_dtype=plugin.mixed_precision_policy.param_dtype,
        reduce_dtype=torch.float32,
        output_dtype=torch.float32,
    )
