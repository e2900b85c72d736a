"""Rows of the section `training`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xp.backends.slime.control.constraints import is_colocated
from xp.backends.slime.worker.config import (
    EVALUATE,
    LOG_EVALUATION,
    SCORE_GROUP,
    STEPS_FLAG,
    train_program,
    warm_up_start,
    warm_up_too_long,
)
from xp.planning.extent import num_steps
from xp.planning.rows import Row
from xp.planning.shared_rows import OLDER, length_rows, longest_episode, not_ahead, whole_episodes
from xp.spec import LossAggregation, RunSpec, Sft, Training
from xp.spec.training import Optimizer

REPORTED_LATER = (
    "Slime reports the gap of an update after it; the first update of a step is checked."
)
REPLAYED = "A resumed run repeats the step that was sampled in advance."
RECOMPUTE = {
    "--recompute-granularity": "full",
    "--recompute-method": "uniform",
    "--recompute-num-layers": 1,
}
ROLLOUT = "xp.backends.slime.worker.rollout"
START = "--load until the run has a checkpoint of its own, and --hf-checkpoint; null: --ref-load is the start"


def sequence_length(spec: RunSpec, longest: int) -> int:
    """Tokens of the longest episode, rounded up to a length that context parallelism can split."""
    step = 2 * spec.backend.parallel.context
    return -(-longest // step) * step


CUT = "Tokens are drawn from these; log-probabilities, SGLang's and the trainer's, are those of all tokens."


def micro_batch(section: Training | Sft) -> dict[str, Any]:
    """Flag of the micro-batch; Megatron also uses it if micro-batches are packed, and 1 divides every number."""
    return {
        "--micro-batch-size": section.micro_batch_size
        if section.max_tokens_per_micro_batch is None
        else 1
    }


def packing(section: Training | Sft) -> dict[str, Any]:
    """Flags that pack episodes by their tokens, if they are not counted."""
    most = section.max_tokens_per_micro_batch
    return {
        "--use-dynamic-batch-size": most is not None,
        "--max-tokens-per-gpu": most,
        "--log-probs-max-tokens-per-gpu": most,
    }


def _warmup(spec: RunSpec) -> str | None:
    """Returns why the warm-up is too long; None if it is not. Where the number of steps is not known yet, the train
    stage checks it."""
    updates = (num_steps(spec) or 0) * spec.training.updates_per_step
    if 0 < updates < spec.training.warmup_updates:
        return warm_up_too_long(updates)
    return None


def warmup_flags(section: Training | Sft) -> dict[str, Any]:
    """Flags of the warm-up. Source: megatron/core/optimizer_param_scheduler.py `get_lr`: --lr-warmup-init is the rate
    of the first update."""
    updates = section.warmup_updates
    start = warm_up_start(section.learning_rate, updates)
    return {"--lr-warmup-iters": max(updates - 1, 0), "--lr-warmup-init": start}


def _read_as_flag(spec: RunSpec) -> str | None:
    taken = next((text for text in spec.training.stop if text.startswith("-")), None)
    return taken and (
        f"Slime's command line would read {taken!r} as a flag of its own; begin it with another character, or"
        " use backend=skyrl or trl"
    )


def _not_ahead(spec: RunSpec) -> str | None:
    """Returns why sampling during updates is impossible."""
    if spec.training.max_staleness > 1:
        return "Slime's train_async.py samples at most one step in advance; set 1, or use backend=trl or skyrl"
    return not_ahead(spec, None, is_colocated=is_colocated(spec))


SIZES = (
    *length_rows(STEPS_FLAG),
    Row("training.prompts_per_step", "--rollout-batch-size"),
    Row(
        "training.generation_prompts",
        lambda s: {"--over-sampling-batch-size": s.training.prompts_per_round},
    ),
    Row(
        "training.group_size",
        lambda s: {
            "--n-samples-per-prompt": s.training.group_size,
            "--group-rm": s.env.scores_groups,
            "--custom-rm-path": SCORE_GROUP if s.env.scores_groups else None,
        },
    ),
    Row(
        "training.updates_per_step",
        lambda s: {
            "--num-steps-per-rollout": s.training.updates_per_step,
            "--global-batch-size": s.training.episodes_per_step // s.training.updates_per_step,
        },
    ),
    Row(
        "training.passes_per_step",
        refuse="Slime uses a step's episodes once; set 1 and updates_per_step higher, or use backend=skyrl or trl",
    ),
    Row(
        "training.max_staleness",
        implemented_by=lambda s: f"Slime's {train_program(s.training.max_staleness)}",
        note=lambda s: REPLAYED if s.training.max_staleness else "",
        refuse=_not_ahead,
    ),
    whole_episodes("Slime's train_async.py"),
    Row("training.micro_batch_size", lambda s: micro_batch(s.training)),
    Row("training.max_tokens_per_micro_batch", lambda s: packing(s.training)),
)

RATES = (
    # Source of the refusal: slime/backends/megatron_utils/arguments.py sets use_distributed_optimizer, and
    # megatron/core/optimizer/distrib_optimizer.py asserts Adam.
    Row(
        "training.optimizer",
        {"--optimizer": "adam"},
        refuse_if=lambda s: s.training.optimizer is not Optimizer.ADAMW,
        refuse="Slime always has Megatron's distributed optimizer, which takes Adam alone; set adamw, or use"
        " backend=trl",
    ),
    Row("training.learning_rate", "--lr"),
    Row(
        "training.critic_learning_rate",
        implemented_by=lambda s: (
            "nothing: there is no critic"
            if s.algorithm.critic is None
            else "lr of the role critic in --megatron-config-path is set by the stage's program"
        ),
    ),
    Row("training.lr_schedule", "--lr-decay-style"),
    Row("training.min_learning_rate", "--min-lr"),
    Row("training.warmup_updates", lambda s: warmup_flags(s.training), refuse=_warmup),
    Row(
        "training.weight_decay",
        lambda s: {
            "--weight-decay": s.training.weight_decay,
            "--weight-decay-incr-style": "constant",
        },
        note="Biases and norms are excluded.",
    ),
    Row("training.adam_beta1", "--adam-beta1"),
    Row("training.adam_beta2", "--adam-beta2"),
    Row("training.adam_eps", "--adam-eps"),
    Row("training.max_grad_norm", "--clip-grad"),
    Row(
        "training.deterministic",
        lambda s: dict.fromkeys(
            ("--deterministic-mode", "--sglang-enable-deterministic-inference"),
            s.training.deterministic,
        ),
    ),
    # With the check, Megatron raises its own error; without it, Slime skips the update, and
    # xp.backends.slime.worker.training reads its gradient norm.
    Row(
        "training.on_nonfinite",
        {"--no-check-for-nan-in-loss-and-grad": True},
        implemented_by="xp.backends.slime.worker.training",
    ),
    Row(
        "training.kl_coef",
        lambda s: {
            "--use-kl-loss": s.training.kl_coef > 0,
            "--kl-loss-coef": s.training.kl_coef,
            # The penalty as a part of the reward has no effect with grpo.
            "--kl-coef": 0.0,
        },
    ),
    Row("training.reference_every", "--ref-update-interval"),
    Row(
        "training.entropy_coef",
        "--entropy-coef",
        note_if=lambda s: (
            s.training.entropy_coef > 0
            and s.algorithm.loss_aggregation is LossAggregation.SEQUENCE_MEAN
        ),
        note="The bonus is a mean over episodes of their token means.",
    ),
)

SAMPLING = (
    Row("training.temperature", "--rollout-temperature"),
    Row(
        "training.top_p",
        "--rollout-top-p",
        refuse_if=lambda s: s.training.top_p < 1,
        refuse="Slime would need each token's nucleus for the update; set it to 1, or use backend=skyrl or trl",
    ),
    Row(
        "training.top_k",
        lambda s: {"--rollout-top-k": s.training.top_k or -1},
        note=lambda s: CUT if s.training.top_k is not None else "",
    ),
    Row(
        "training.min_p",
        implemented_by=lambda s: (
            f"min_p of each turn, by {ROLLOUT}" if s.training.min_p > 0 else ""
        ),
        note=lambda s: CUT if s.training.min_p > 0 else "",
    ),
    Row(
        "training.repetition_penalty",
        refuse="SGLang penalises only what the turn itself repeats, not the conversation; set 1, or use backend=skyrl"
        " or trl",
    ),
    # The string stays in the turn: Slime sets SGLang's no_stop_trim.
    Row(
        "training.stop", lambda s: {"--rollout-stop": s.training.stop or None}, refuse=_read_as_flag
    ),
    Row(
        "training.max_tokens_per_turn",
        "--rollout-max-response-len",
        implemented_by=f"max_new_tokens of each turn, by {ROLLOUT}",
    ),
    Row(
        "training.max_response_tokens",
        lambda s: {"--seq-length": sequence_length(s, longest_episode(s))},
        implemented_by=ROLLOUT,
    ),
)

PROGRESS = (
    # Source of the refusal: slime/backends/megatron_utils/hf_to_megatron has no critic's output layer.
    Row(
        "training.initial_checkpoint",
        implemented_by=START,
        refuse_if=lambda s: (
            s.algorithm.critic is not None
            and (s.training.initial_checkpoint is not None or s.sft.data is not None)
        ),
        refuse="Slime's critic starts from a Megatron checkpoint, not from a Hugging Face directory (a checkpoint, or"
        " the fine-tuned model of sft.data); make the checkpoint the model (model.path), or use backend=skyrl or"
        " algorithm=grpo",
    ),
    Row("training.checkpoint_every", "--save-interval"),
    Row(
        "training.export_every",
        implemented_by=lambda s: (
            "--save-hf"
            if s.training.export_every is None
            else "xp.backends.slime.worker.training, which leaves the other exports of --save-hf out"
        ),
    ),
    Row(
        "training.keep_checkpoints",
        implemented_by="xp.backends.slime.worker.checkpoints",
        note="Slime deletes none; xp deletes old ones once a newer one is whole.",
    ),
    Row(
        "training.gradient_checkpointing",
        lambda s: RECOMPUTE if s.training.gradient_checkpointing else dict.fromkeys(RECOMPUTE),
    ),
    Row(
        "training.max_logprob_gap",
        implemented_by="xp.backends.slime.worker.training, of Slime's train_rollout_logprob_abs_diff",
        note=lambda s: f"{REPORTED_LATER} {OLDER}" if s.training.max_staleness else REPORTED_LATER,
    ),
)


TRAINING = (*SIZES, *RATES, *SAMPLING, *PROGRESS)


HELD_OUT = "held_out"
"""Name of the evaluation's data set within Slime."""


def evaluation_flags(spec: RunSpec) -> dict[str, Any]:
    """Flags of evaluation by Slime's rollout, with one line of data per episode.

    The training's program makes the interval a divisor of the number of steps, which a plan may not know yet.
    """
    flags = {
        "--eval-interval": spec.evaluation.every or 1,
        "--eval-function-path": EVALUATE,
        "--n-samples-per-eval-prompt": 1,
        "--custom-eval-rollout-log-function-path": LOG_EVALUATION,
    }
    if spec.env.is_held_out:
        return flags
    return dict.fromkeys(flags)


def _evaluated(name: str, flag: str, value: Callable[[RunSpec], Any]) -> Row:
    """Row of the sampling of held-out episodes."""
    return Row(f"evaluation.{name}", lambda s: {flag: value(s) if s.env.is_held_out else None})


def _without_export(spec: RunSpec) -> str | None:
    """Returns why an evaluation's step may have no model, since Slime exports only with checkpoints. None means that it
    has."""
    every = spec.evaluation.every
    training = spec.training
    if training.export_every is None:
        name = "checkpoint_every"
    else:
        name = "export_every"
    export = getattr(training, name)
    if every is None or every % export == 0:
        return None
    return (
        f"Slime exports a model with a checkpoint, every {export} steps; set training.{name} to a divisor of"
        f" evaluation.every={every}, or use backend=trl or skyrl"
    )


EVALUATION = (
    _evaluated("temperature", "--eval-temperature", lambda s: s.evaluation.temperature),
    _evaluated("top_p", "--eval-top-p", lambda s: s.evaluation.top_p),
    _evaluated("top_k", "--eval-top-k", lambda s: s.evaluation.top_k or -1),
    _evaluated(
        "max_tokens_per_turn",
        "--eval-max-response-len",
        lambda s: s.evaluation.max_tokens_per_turn or s.training.max_tokens_per_turn,
    ),
    Row(
        "evaluation.before_training",
        lambda s: {
            "--skip-eval-before-train": not s.evaluation.before_training
            if s.env.is_held_out
            else None
        },
        note_if=lambda s: s.evaluation.before_training and s.training.max_staleness,
        note="train_async.py does not evaluate first: the evaluate stage does.",
    ),
    Row("evaluation.every", evaluation_flags),
    Row(
        "evaluation.keep_best",
        implemented_by="xp.worker.best: the export of that step",
        refuse_if=lambda s: s.evaluation.keep_best,
        refuse=_without_export,
    ),
    Row(
        "evaluation.patience",
        implemented_by="xp.worker.best; train.py is ended, and the export of the last step is the model",
        refuse_if=lambda s: s.evaluation.patience is not None,
        refuse=_without_export,
    ),
    Row(
        "evaluation.batch_size",
        implemented_by="xp.engines.evaluate",
        note="Of the evaluate stage; the train stage plays as many as in a rollout.",
    ),
)
