"""Rows of the section `training`."""

from __future__ import annotations

from xp.backends.skyrl.control.constraints import is_colocated, is_megatron
from xp.backends.skyrl.control.keys import (
    ALGORITHM,
    ENGINE,
    MEGATRON,
    MICRO_BATCHES,
    Keys,
    has_critic,
    optimizers,
    sampled,
    trained,
)
from xp.backends.skyrl.worker.config import AT_THE_END, STEPS_KEY, warm_up_too_long
from xp.planning.extent import num_steps
from xp.planning.rows import Row
from xp.planning.shared_rows import (
    ENDED,
    OLDER,
    length_rows,
    longest_episode,
    longest_in_engine,
    not_ahead,
)
from xp.spec import LrSchedule, RunSpec
from xp.spec.training import OnNonfinite, Optimizer, Unfinished

SCHEDULER = {
    # Without warm-up updates, the rate is constant from the start.
    LrSchedule.CONSTANT: "constant_with_warmup",
    LrSchedule.LINEAR: "linear",
    LrSchedule.COSINE: "cosine",
}
SCHEDULES = "xp's schedule in SkyRL's FSDP worker"
FSDP_ADAM_EPS = 1e-8
"""PyTorch's AdamW default: SkyRL's FSDP strategy has no key for it (fsdp_strategy.py `_fsdp_init_train_model`)."""
REPLAYED = "A resumed run repeats the steps that were sampled in advance."
BY_GROUP = "An episode's age counts from its group's first token; keys and values of older weights stay in the cache."
CUT = "The engine's log-probabilities are those after it, the trainer's those before it."


def other_schedule(spec: RunSpec, schedule: LrSchedule) -> str | None:
    """Returns why a schedule is not supported."""
    if not is_megatron(spec) or schedule is LrSchedule.CONSTANT:
        return None
    return f"SkyRL's Megatron supports only constant, not {schedule.value}; set it, or backend.parallel.strategy=fsdp2"


def warmup_note(spec: RunSpec, warmup: int) -> str:
    """Note on the warm-up. Source: skyrl_train/distributed/megatron/optimizer.py, whose `init_lr` has no key in
    SkyRL."""
    if is_megatron(spec) and warmup:
        return "Update k of a warm-up of N has (k-1)/N; elsewhere k/N."
    return ""


def no_rate(spec: RunSpec, warmup: int, updates: int) -> str | None:
    """Returns why the warm-up is too long; for 0 updates, which are not known yet, the stage checks again."""
    if is_megatron(spec) and warmup >= updates > 0:
        return warm_up_too_long(updates)
    return None


def _fully_async(spec: RunSpec) -> Keys:
    """Keys of SkyRL's fully asynchronous trainer, with the largest number of groups in flight."""
    ahead = spec.training.max_staleness
    keys: Keys = {"trainer.fully_async.enabled": ahead > 0}
    if not ahead:
        return keys
    return keys | {
        "trainer.fully_async.max_staleness_steps": ahead,
        "trainer.fully_async.num_parallel_generation_workers": spec.training.prompts_per_step
        * (ahead + 1),
        "trainer.fully_async.sample_full_batch": False,
        "trainer.fully_async.clear_kv_cache_on_weight_sync": False,
    }


def _not_ahead(spec: RunSpec) -> str | None:
    """Returns why sampling during updates is impossible.

    Source: skyrl 0.4.0, train/fully_async_trainer.py `FullyAsyncRayPPOTrainer.__init__`.
    """
    reason = "SkyRL's fully asynchronous trainer makes one update per step; set training.updates_per_step=1"
    return not_ahead(
        spec,
        reason if spec.training.updates_per_step > 1 else None,
        is_colocated=is_colocated(spec),
    )


def _is_packed(spec: RunSpec) -> bool:
    return spec.training.max_tokens_per_micro_batch is not None


def _no_packing(spec: RunSpec) -> str | None:
    """Returns why episodes cannot be packed by tokens; None if they can, or need not.

    Source: skyrl 0.4.0, megatron_worker.py `_pad_microbatch_to_size` and the KL and entropy terms of
    megatron_model_wrapper.py, which are means over a micro-batch's rows, then over the micro-batches.
    """
    names = [name for name in ("kl_coef", "entropy_coef") if getattr(spec.training, name) > 0]
    if not is_megatron(spec) or not _is_packed(spec) or not names:
        return None
    zero = " and ".join(f"training.{name}=0" for name in names)
    return (
        f"SkyRL's Megatron averages the terms of {' and '.join(names)} over micro-batches of different sizes, which it"
        f" fills up with empty rows, so that their strength depends on the packing; set null, or {zero}, or"
        " backend.parallel.strategy=fsdp2"
    )


SIZES = (
    *length_rows(STEPS_KEY),
    Row("training.prompts_per_step", "trainer.train_batch_size"),
    Row(
        "training.generation_prompts",
        implemented_by="the loader of xp.backends.skyrl.worker.trainer",
        refuse_if=lambda s: (
            s.training.generation_prompts is not None and s.training.max_staleness > 0
        ),
        refuse="beside training.max_staleness groups begin one by one, not in rounds; set null",
    ),
    Row("training.group_size", "generator.n_samples_per_prompt"),
    Row(
        "training.updates_per_step",
        lambda s: {
            f"trainer.{role}_mini_batch_size": s.training.prompts_per_step
            // s.training.updates_per_step
            for role in trained(s)
        },
    ),
    Row("training.passes_per_step", "trainer.update_epochs_per_batch"),
    Row(
        "training.max_staleness",
        _fully_async,
        implemented_by=lambda s: (
            "xp.backends.skyrl.worker.async_rollouts" if s.training.max_staleness else ""
        ),
        note=lambda s: REPLAYED if s.training.max_staleness else "",
        refuse=_not_ahead,
    ),
    Row(
        "training.unfinished",
        implemented_by=lambda s: (
            "xp.backends.skyrl.worker.async_rollouts" if s.training.max_staleness else ENDED
        ),
        note=lambda s: BY_GROUP if s.training.unfinished is Unfinished.CONTINUE else "",
    ),
    # 1 if episodes are packed by tokens, since SkyRL checks the unused number.
    Row(
        "training.micro_batch_size",
        lambda s: dict.fromkeys(MICRO_BATCHES, 1 if _is_packed(s) else s.training.micro_batch_size),
        note=lambda s: "Unused: episodes are packed by tokens." if _is_packed(s) else "",
    ),
    Row(
        "training.max_tokens_per_micro_batch",
        lambda s: {
            "trainer.max_tokens_per_microbatch": s.training.max_tokens_per_micro_batch or -1
        },
        note=lambda s: (
            "An episode that is longer gets a micro-batch of its own." if _is_packed(s) else ""
        ),
        refuse=_no_packing,
    ),
)

RATES = (
    Row(
        "training.optimizer",
        implemented_by="AdamW: PyTorch's under FSDP, Megatron's",
        refuse_if=lambda s: s.training.optimizer is not Optimizer.ADAMW,
        refuse="SkyRL has AdamW alone: its FSDP strategy makes no other, and Megatron's distributed optimizer takes no"
        " other; set adamw, or use backend=trl",
    ),
    Row("training.learning_rate", "trainer.policy.optimizer_config.lr"),
    Row(
        "training.critic_learning_rate",
        lambda s: (
            {
                "trainer.critic.optimizer_config.lr": s.training.critic_learning_rate
                or s.training.learning_rate
            }
            if has_critic(s)
            else {}
        ),
        implemented_by=lambda s: "" if has_critic(s) else "nothing: there is no critic",
    ),
    Row(
        "training.lr_schedule",
        lambda s: optimizers(s, "scheduler", SCHEDULER[s.training.lr_schedule]),
        refuse=lambda s: other_schedule(s, s.training.lr_schedule),
    ),
    Row(
        "training.min_learning_rate",
        implemented_by=lambda s: "nothing: the rate is constant" if is_megatron(s) else SCHEDULES,
    ),
    Row(
        "training.warmup_updates",
        lambda s: optimizers(s, "num_warmup_steps", s.training.warmup_updates),
        implemented_by=lambda s: "" if is_megatron(s) else f"{SCHEDULES}, which begins at 1/N",
        note=lambda s: warmup_note(s, s.training.warmup_updates),
        refuse=lambda s: no_rate(
            s, s.training.warmup_updates, (num_steps(s) or 0) * s.training.all_updates_per_step
        ),
    ),
    Row(
        "training.weight_decay",
        lambda s: optimizers(s, "weight_decay", s.training.weight_decay),
        note=lambda s: (
            "Biases and norms decay too."
            if s.training.weight_decay > 0 and not is_megatron(s)
            else ""
        ),
    ),
    # SkyRL has one list for both of Adam's betas.
    Row(
        "training.adam_beta1",
        lambda s: optimizers(s, "adam_betas", [s.training.adam_beta1, s.training.adam_beta2]),
    ),
    Row(
        "training.adam_beta2",
        implemented_by="trainer.policy.optimizer_config.adam_betas, with adam_beta1",
    ),
    Row(
        "training.adam_eps",
        lambda s: (
            {f"{MEGATRON[0]}.optimizer_config_kwargs.adam_eps": s.training.adam_eps}
            if is_megatron(s)
            else {}
        ),
        implemented_by=lambda s: (
            "" if is_megatron(s) else f"torch.optim.AdamW's own {FSDP_ADAM_EPS}"
        ),
        refuse_if=lambda s: not is_megatron(s) and s.training.adam_eps != FSDP_ADAM_EPS,
        refuse=f"SkyRL's FSDP uses PyTorch's {FSDP_ADAM_EPS} and has no key for it; set it to {FSDP_ADAM_EPS}, or"
        " backend.parallel.strategy=megatron",
    ),
    Row(
        "training.max_grad_norm", lambda s: optimizers(s, "max_grad_norm", s.training.max_grad_norm)
    ),
    # Under FSDP, xp.backends.skyrl.worker.workers averages the penalty like the loss.
    Row(
        "training.kl_coef",
        lambda s: {
            f"{ALGORITHM}.use_kl_loss": s.training.kl_coef > 0 and not s.algorithm.use_kl_in_reward,
            f"{ALGORITHM}.kl_loss_coef": s.training.kl_coef,
        },
        note_if=lambda s: s.training.kl_coef > 0 and is_megatron(s),
        note="The penalty is a mean over all episodes, void ones too, of their token means.",
    ),
    Row(
        "training.reference_every",
        # SkyRL copies it once an epoch, and xp's view of the tasks is one epoch.
        refuse="SkyRL copies the reference only between epochs; set null, or use backend=trl or slime",
    ),
    Row(
        "training.entropy_coef",
        lambda s: {
            f"{ALGORITHM}.use_entropy_loss": s.training.entropy_coef > 0,
            f"{ALGORITHM}.entropy_loss_coef": s.training.entropy_coef,
        },
        note_if=lambda s: s.training.entropy_coef > 0 and is_megatron(s),
        note="The bonus is a token mean per micro-batch, not one of the update.",
    ),
)

SAMPLING = (
    Row(
        "training.temperature",
        lambda s: {
            "generator.sampling_params.temperature": s.training.temperature,
            f"{ALGORITHM}.temperature": s.training.temperature,
        },
    ),
    Row(
        "training.top_p",
        "generator.sampling_params.top_p",
        note=lambda s: CUT if s.training.top_p < 1 else "",
    ),
    Row(
        "training.top_k",
        lambda s: {"generator.sampling_params.top_k": s.training.top_k or -1},
        note=lambda s: CUT if s.training.top_k is not None else "",
    ),
    Row(
        "training.min_p",
        "generator.sampling_params.min_p",
        note=lambda s: CUT if s.training.min_p > 0 else "",
    ),
    # SkyRL does not send sampling_params.repetition_penalty to the engine.
    Row(
        "training.repetition_penalty",
        lambda s: {
            "generator.sampling_params.additional_kwargs": (
                None
                if s.training.repetition_penalty == 1
                else {"repetition_penalty": s.training.repetition_penalty}
            )
        },
        note=lambda s: CUT if s.training.repetition_penalty != 1 else "",
    ),
    Row("training.stop", lambda s: sampled("stop", list(s.training.stop) or None)),
    Row("training.max_tokens_per_turn", "generator.sampling_params.max_generate_length"),
    # xp excludes long prompts itself, by the model's tokens; SkyRL's own filter is disabled by a large limit.
    Row(
        "training.max_prompt_tokens",
        lambda s: {"trainer.max_prompt_length": longest_episode(s)},
        implemented_by="xp.tasks.load, which leaves longer prompts out",
    ),
    # SkyRL limits prompt and response together; xp's generator also limits the response alone.
    Row(
        "training.max_response_tokens",
        lambda s: {
            "generator.max_input_length": longest_in_engine(s),
            f"{ENGINE}.engine_init_kwargs.max_model_len": longest_in_engine(s),
        },
        implemented_by="xp.backends.skyrl.worker.generator, which gives a turn what is left",
    ),
)

PROGRESS = (
    Row(
        "training.initial_checkpoint", implemented_by="trainer.policy.model.path; null: model.path"
    ),
    Row("training.checkpoint_every", "trainer.ckpt_interval"),
    Row(
        "training.export_every",
        lambda s: {
            "trainer.hf_save_interval": s.training.export_every or s.training.checkpoint_every
        },
    ),
    Row("training.keep_checkpoints", "trainer.max_ckpts_to_keep"),
    Row("training.gradient_checkpointing", "trainer.gradient_checkpointing"),
    Row(
        "training.deterministic",
        refuse="SkyRL has no deterministic mode; set false, or use backend=slime",
    ),
    Row(
        "training.max_logprob_gap",
        implemented_by="xp.backends.skyrl.worker.trainer, over a step's episodes, before an update is made",
        note=lambda s: OLDER if s.training.max_staleness else "",
    ),
    Row(
        "training.on_nonfinite",
        implemented_by="xp.backends.skyrl.worker.steps; SkyRL's FSDP2 leaves such an update out itself",
        refuse_if=lambda s: is_megatron(s) and s.training.on_nonfinite is OnNonfinite.SKIP,
        refuse="SkyRL's Megatron optimizer applies such an update; set stop, or strategy=fsdp2",
    ),
)

TRAINING = (*SIZES, *RATES, *SAMPLING, *PROGRESS)


EVALUATED = "generator.eval_sampling_params"

EVALUATION = (
    Row("evaluation.temperature", f"{EVALUATED}.temperature"),
    Row("evaluation.top_p", f"{EVALUATED}.top_p"),
    Row("evaluation.top_k", lambda s: {f"{EVALUATED}.top_k": s.evaluation.top_k or -1}),
    Row(
        "evaluation.max_tokens_per_turn",
        lambda s: {
            f"{EVALUATED}.max_generate_length": s.evaluation.max_tokens_per_turn
            or s.training.max_tokens_per_turn
        },
    ),
    Row(
        "evaluation.before_training",
        lambda s: {"trainer.eval_before_train": s.evaluation.before_training and s.env.is_held_out},
    ),
    Row(
        "evaluation.every",
        lambda s: {
            "trainer.eval_interval": s.evaluation.every or (AT_THE_END if s.env.is_held_out else -1)
        },
        note=lambda s: "SkyRL evaluates after the last step too." if s.evaluation.every else "",
    ),
    Row(
        "evaluation.batch_size",
        "trainer.eval_batch_size",
        note="SkyRL plays one batch after the other; each lasts as long as its longest episode.",
    ),
)
