"""Spec field -> Slime's flags: the one place where xp's words become the command line of the pinned version.

Every knob that has meaning is written, whatever the default of Slime, Megatron or SGLang. A flag that a value of the
spec leaves out is None: it is xp's all the same, and no override may bring it in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xp.backends.slime.control.flags import Flags, switch, value
from xp.backends.slime.control.geometry import geometry, is_colocated, num_engines
from xp.backends.slime.worker.config import STEPS_FLAG
from xp.backends.slime.worker.hooks import (
    ADVANTAGES,
    ENTER_TRAINING,
    GENERATE,
    HAS_VARIANCE,
    LOG_EVALUATION,
    LOG_ROLLOUT,
    OVER_TRAINED_TOKENS,
)
from xp.backends.slime.worker.tasks_view import INPUT_KEY, METADATA_KEY, TOOL_KEY
from xp.spec import (
    AdvantageScale,
    Estimator,
    ImportanceCorrection,
    LossAggregation,
    PolicyLoss,
    RatioLevel,
    RunSpec,
)

HELD_OUT = "held_out"
"""Name of the evaluation's data set within Slime."""

KNOBS: Mapping[str, Callable[[RunSpec], Flags]] = {
    "seed": lambda s: {"--seed": value(s.seed), "--rollout-seed": value(s.seed)},
    "model.dtype": lambda _: {"--bf16": ()},
    "model.path": lambda s: {"--hf-checkpoint": value(s.training.initial_checkpoint or s.model.path)},
    "model.max_context_tokens": lambda s: {"--sglang-context-length": value(s.model.max_context_tokens)},
    "algorithm.estimator": lambda s: {"--advantage-estimator": value(native_estimator(s))},
    "algorithm.advantage_scale": lambda s: {
        "--disable-grpo-std-normalization": switch(s.algorithm.advantage_scale is not AdvantageScale.GROUP_STD),
        # reinforce_pp is whitened by xp.backends.slime.worker.advantages already.
        "--normalize-advantages": switch(s.algorithm.estimator is Estimator.GAE),
    },
    "algorithm.critic": lambda s: _critic(s),
    "algorithm.clip_low": lambda s: {"--eps-clip": value(s.algorithm.clip_low)},
    "algorithm.clip_high": lambda s: {"--eps-clip-high": value(s.algorithm.clip_high)},
    "algorithm.loss_aggregation": lambda s: {
        "--calculate-per-token-loss": switch(s.algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN)
    },
    # low_var_kl is a k3 that is cut at 10; k3 is the estimator itself.
    "algorithm.kl_estimator": lambda s: {"--kl-loss-type": value(s.algorithm.kl_estimator)},
    "algorithm.importance_correction": lambda s: {
        "--use-tis": switch(s.algorithm.importance_correction is ImportanceCorrection.TOKEN)
    },
    "algorithm.importance_cap": lambda s: {
        "--tis-clip": value(s.algorithm.importance_cap),
        "--tis-clip-low": value(0.0),
    },
    "algorithm.dynamic_sampling": lambda s: {
        "--dynamic-sampling-filter-path": (HAS_VARIANCE,) if s.algorithm.dynamic_sampling else None,
        "--over-sampling-batch-size": value(s.training.prompts_per_step),
    },
    "training.num_steps": lambda s: {} if s.training.num_steps is None else {STEPS_FLAG: value(s.training.num_steps)},
    # With epochs, the stage's program puts it there, once it knows the number of tasks.
    "training.epochs": lambda s: {} if s.training.epochs is None else {STEPS_FLAG: None},
    "training.prompts_per_step": lambda s: {"--rollout-batch-size": value(s.training.prompts_per_step)},
    "training.group_size": lambda s: {"--n-samples-per-prompt": value(s.training.group_size)},
    "training.updates_per_step": lambda s: {
        "--num-steps-per-rollout": value(s.training.updates_per_step),
        "--global-batch-size": value(geometry(s).samples_per_update),
    },
    # Megatron counts with it where micro-batches are packed too; one divides everything.
    "training.micro_batch_size": lambda s: {
        "--micro-batch-size": value(s.training.micro_batch_size if s.training.max_tokens_per_micro_batch is None else 1)
    },
    "training.max_tokens_per_micro_batch": lambda s: _packing(s),
    "training.learning_rate": lambda s: {"--lr": value(s.training.learning_rate)},
    "training.lr_schedule": lambda s: {"--lr-decay-style": value(s.training.lr_schedule), "--min-lr": value(0.0)},
    "training.warmup_updates": lambda s: {
        "--lr-warmup-iters": value(s.training.warmup_updates),
        "--lr-warmup-init": value(0.0),
    },
    "training.weight_decay": lambda s: {
        "--weight-decay": value(s.training.weight_decay),
        "--weight-decay-incr-style": ("constant",),
    },
    "training.adam_beta1": lambda s: {"--adam-beta1": value(s.training.adam_beta1)},
    "training.adam_beta2": lambda s: {"--adam-beta2": value(s.training.adam_beta2)},
    "training.adam_eps": lambda s: {"--adam-eps": value(s.training.adam_eps)},
    "training.max_grad_norm": lambda s: {"--clip-grad": value(s.training.max_grad_norm)},
    # With the check Megatron raises, and says nothing of xp's; without it Slime leaves the update out, whose gradient
    # norm xp.backends.slime.worker.training reads.
    "training.on_nonfinite": lambda _: {"--no-check-for-nan-in-loss-and-grad": ()},
    "training.kl_coef": lambda s: {
        "--use-kl-loss": switch(s.training.kl_coef > 0),
        "--kl-loss-coef": value(s.training.kl_coef),
        # In the reward it does nothing for grpo.
        "--kl-coef": value(0.0),
    },
    "training.entropy_coef": lambda s: {"--entropy-coef": value(s.training.entropy_coef)},
    "training.temperature": lambda s: {"--rollout-temperature": value(s.training.temperature)},
    "training.top_p": lambda s: {"--rollout-top-p": value(s.training.top_p)},
    "training.top_k": lambda s: {"--rollout-top-k": value(s.training.top_k or -1)},
    # The text stays in the turn: Slime asks SGLang not to trim it.
    "training.stop": lambda s: {"--rollout-stop": tuple(s.training.stop) or None},
    "training.max_tokens_per_turn": lambda s: {"--rollout-max-response-len": value(s.training.max_tokens_per_turn)},
    "training.max_response_tokens": lambda s: {"--seq-length": value(sequence_length(s))},
    "training.checkpoint_every": lambda s: {"--save-interval": value(s.training.checkpoint_every)},
    "training.gradient_checkpointing": lambda s: _recompute(s),
    "evaluation.temperature": lambda s: {
        "--eval-temperature": value(s.evaluation.temperature) if s.evaluation.every else None
    },
    "evaluation.every": lambda s: evaluation_flags(s, s.evaluation.every),
    "backend.attention": lambda s: {"--attention-backend": (s.backend.attention.value,)},
    "backend.parallel.tensor": lambda s: {
        "--tensor-model-parallel-size": value(s.backend.parallel.tensor),
        # Experts under tensor parallelism want it, and it saves memory for everything else.
        "--sequence-parallel": switch(s.backend.parallel.tensor > 1),
    },
    "backend.parallel.pipeline": lambda s: {"--pipeline-model-parallel-size": value(s.backend.parallel.pipeline)},
    "backend.parallel.context": lambda s: {"--context-parallel-size": value(s.backend.parallel.context)},
    "backend.parallel.expert": lambda s: {
        "--expert-model-parallel-size": value(s.backend.parallel.expert),
        # Experts that are not spread by number are split like everything else.
        "--expert-tensor-parallel-size": value(1 if s.backend.parallel.expert > 1 else s.backend.parallel.tensor),
    },
    "backend.parallel.offload_optimizer": lambda s: _offload(s),
    "backend.engine.placement": lambda s: {
        "--colocate": switch(is_colocated(s)),
        "--actor-num-nodes": value(geometry(s).train_nodes),
        "--actor-num-gpus-per-node": value(geometry(s).train_per_node),
        "--num-gpus-per-node": value(s.hardware.accelerators_per_node),
    },
    "backend.engine.accelerators": lambda s: {"--rollout-num-gpus": value(geometry(s).rollout)},
    "backend.engine.tensor_parallel": lambda s: {
        "--rollout-num-gpus-per-engine": value(s.backend.engine.tensor_parallel)
    },
    "backend.engine.memory_fraction": lambda s: {
        "--sglang-mem-fraction-static": value(s.backend.engine.memory_fraction)
    },
    "backend.engine.max_sequences": lambda s: {
        "--sglang-max-running-requests": value(s.backend.engine.max_sequences),
        # Slime's own bound on episodes in flight, which wait for their environments too.
        "--sglang-server-concurrency": value(
            episodes_per_engine(s, s.training.prompts_per_step * s.training.group_size)
        ),
    },
    "backend.engine.eager": lambda s: {"--sglang-disable-cuda-graph": switch(s.backend.engine.eager)},
    "backend.engine.prefix_caching": lambda s: {
        "--sglang-disable-radix-cache": switch(not s.backend.engine.prefix_caching)
    },
}
"""Spec field -> flags."""

FIXED: Flags = {
    "--train-backend": ("megatron",),
    "--loss-type": ("policy_loss",),
    "--optimizer": ("adam",),
    # Megatron's own defaults are 0.1.
    "--attention-dropout": value(0.0),
    "--hidden-dropout": value(0.0),
    "--attention-softmax-in-fp32": (),
    "--accumulate-allreduce-grads-in-fp32": (),
    # A resumed run may have more steps than its checkpoint knew of: the spec's schedule holds.
    "--override-opt-param-scheduler": (),
    "--update-weights-interval": value(1),
    "--input-key": (INPUT_KEY,),
    "--metadata-key": (METADATA_KEY,),
    "--tool-key": (TOOL_KEY,),
    "--custom-generate-function-path": (GENERATE,),
    "--custom-reward-post-process-path": (ADVANTAGES,),
    # Metrics are xp's: the rollout's by the first function, the update's by the second.
    "--custom-rollout-log-function-path": (LOG_ROLLOUT,),
    "--custom-megatron-init-path": (ENTER_TRAINING,),
}
"""Flags that xp sets the same for every spec."""


def knob_flags(spec: RunSpec) -> Flags:
    """What all fields of the spec make together; call only where `refusals` is empty."""
    return {name: values for knob in KNOBS.values() for name, values in knob(spec).items()}


def native_estimator(spec: RunSpec) -> str:
    """Slime's estimator chooses the loss; gspo and cispo hand on, as grpo does, what xp made of them."""
    algorithm = spec.algorithm
    if algorithm.estimator is Estimator.GAE:
        return "ppo"
    if algorithm.policy_loss is PolicyLoss.CISPO:
        return "cispo"
    return "gspo" if algorithm.ratio_level is RatioLevel.SEQUENCE else "grpo"


def evaluation_flags(spec: RunSpec, every: int | None) -> Flags:
    """Evaluation by Slime's rollout; None keeps all of it off. The view has one line an episode."""
    training = spec.training
    flags: Flags = {
        "--eval-interval": value(every),
        "--skip-eval-before-train": (),
        "--n-samples-per-eval-prompt": value(1),
        "--eval-top-p": value(training.top_p),
        "--eval-top-k": value(training.top_k or -1),
        "--eval-max-response-len": value(training.max_tokens_per_turn),
        "--custom-eval-rollout-log-function-path": (LOG_EVALUATION,),
    }
    return flags if every else dict.fromkeys(flags)


def sequence_length(spec: RunSpec) -> int:
    """Longest episode in tokens, as context parallelism can split it."""
    longest, step = (
        spec.training.max_prompt_tokens + spec.training.max_response_tokens,
        2 * spec.backend.parallel.context,
    )
    return -(-longest // step) * step


def episodes_per_engine(spec: RunSpec, at_once: int) -> int:
    return -(-at_once // num_engines(spec))


def _critic(spec: RunSpec) -> Flags:
    critic = spec.algorithm.critic
    flags: Flags = {
        "--gamma": None if critic is None else value(critic.discount),
        "--lambd": None if critic is None else value(critic.gae_lambda),
        "--value-clip": None if critic is None else value(critic.value_clip),
        "--num-critic-only-steps": None if critic is None else value(0),
        "--custom-advantage-function-path": None if critic is None else (OVER_TRAINED_TOKENS,),
    }
    return flags


def _packing(spec: RunSpec) -> Flags:
    most = spec.training.max_tokens_per_micro_batch
    return {
        "--use-dynamic-batch-size": switch(most is not None),
        "--max-tokens-per-gpu": None if most is None else value(most),
        "--log-probs-max-tokens-per-gpu": None if most is None else value(most),
    }


def _recompute(spec: RunSpec) -> Flags:
    is_on = spec.training.gradient_checkpointing
    return {
        "--recompute-granularity": ("full",) if is_on else None,
        "--recompute-method": ("uniform",) if is_on else None,
        "--recompute-num-layers": value(1) if is_on else None,
    }


def _offload(spec: RunSpec) -> Flags:
    is_on = spec.backend.parallel.offload_optimizer
    return {
        "--optimizer-cpu-offload": switch(is_on),
        "--overlap-cpu-optimizer-d2h-h2d": switch(is_on),
        "--use-precision-aware-optimizer": switch(is_on),
    }
