"""What each field of a spec means to TRL: the rows of the parity table, made from the knobs themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from xp.backends.base import MEANT, Fit, Meaning, length_meaning
from xp.backends.trl.control.geometry import world_size
from xp.backends.trl.control.knobs import KNOBS, is_colocated
from xp.backends.trl.control.refusals import OTHER_ESTIMATORS
from xp.spec import EngineName, Estimator, LossAggregation, RunSpec, Section

ROLLOUT = "xp.backends.trl.worker.rollout"
ENGINE = "the engine that xp drives"
REFUSED = "refused where it is set"
TOKENS_OF_A_STEP = (
    "With several updates a step, token_mean divides each by the step's tokens over their number, not by its own."
)
ALL_EPISODES = "An episode that is left out (void, or truncated where those are) counts as one of loss zero."

CARRIED: Mapping[str, Meaning] = {
    "model.name": Meaning(Fit.EXACT, "the run's record"),
    "model.path": Meaning(Fit.EXACT, "AutoModelForCausalLM.from_pretrained"),
    "model.build": Meaning(Fit.EXACT, "xp.builtin.model, in the model stage"),
    "model.dialect": Meaning(Fit.EXACT, "xp.episode"),
    "model.max_context_tokens": Meaning(Fit.EXACT, "checked against the longest episode when planning"),
    "model.chat_template": Meaning(
        Fit.EXACT, "arguments of the chat template, in xp.episode.tokens; earlier turns stay as written"
    ),
    "model.tools_prompt": Meaning(Fit.EXACT, "xp.episode.tokens"),
    "model.architecture": Meaning(Fit.EXACT, "the model's own config.json"),
    "model.lora": Meaning(Fit.EXACT, "peft_config=None"),
    "model.lora.rank": Meaning(Fit.EXACT, "LoraConfig.r"),
    "model.lora.alpha": Meaning(Fit.EXACT, "LoraConfig.lora_alpha"),
    "model.lora.dropout": Meaning(Fit.EXACT, "LoraConfig.lora_dropout"),
    "model.lora.target_modules": Meaning(Fit.EXACT, "LoraConfig.target_modules, null being all-linear"),
    "algorithm.name": Meaning(Fit.EXACT, "the run's record"),
    "algorithm.estimator": Meaning(Fit.EXACT, "GRPOTrainer's own"),
    "algorithm.advantage_fn": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer makes the advantages itself."),
    "algorithm.critic": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer has no critic."),
    "algorithm.policy_loss": Meaning(Fit.EXACT, "loss_type, with algorithm.loss_aggregation"),
    "algorithm.loss_aggregation": Meaning(Fit.EMULATED, "loss_type=cispo", TOKENS_OF_A_STEP),
    "algorithm.importance_cap": Meaning(Fit.EXACT, "nothing: there is no correction to cap"),
    "algorithm.mask_truncated": Meaning(Fit.EXACT, f"env_mask from {ROLLOUT}"),
    "algorithm.dynamic_sampling": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer does not resample groups."),
    "training.critic_learning_rate": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer has no critic."),
    "training.max_tokens_per_micro_batch": Meaning(
        Fit.UNSUPPORTED, REFUSED, "A micro-batch is a number of episodes there."
    ),
    "training.initial_checkpoint": Meaning(
        Fit.EXACT, "AutoModelForCausalLM.from_pretrained, the reference's place being model.path; null: model.path"
    ),
    "training.max_prompt_tokens": Meaning(Fit.EXACT, "xp.tasks.load leaves longer prompts out"),
    "training.stop": Meaning(Fit.EXACT, f"where a turn ends, by {ENGINE}"),
    "training.max_tokens_per_turn": Meaning(Fit.EXACT, f"max_tokens of each turn, by {ENGINE}"),
    "training.shuffle": Meaning(Fit.EXACT, "xp.tasks.schedule; shuffle_dataset=False"),
    "training.max_void_fraction": Meaning(Fit.EXACT, "xp.backends.trl.worker.steps, over all ranks"),
    "training.on_nonfinite": Meaning(Fit.EXACT, "xp.backends.trl.worker.guard, before the optimizer's step"),
    "training.max_logprob_gap": Meaning(
        Fit.EXACT, "xp.backends.trl.worker.guard, over the episodes of the step's first update, before it is made"
    ),
    "evaluation.num_tasks": Meaning(Fit.EXACT, "xp.tasks.rounds, in the evaluate stage and while training"),
    "evaluation.samples_per_task": Meaning(Fit.EXACT, "xp.tasks.rounds, in the evaluate stage and while training"),
    "evaluation.temperature": Meaning(Fit.EXACT, "the evaluate stage"),
    "evaluation.before_training": Meaning(Fit.EXACT, "the evaluate stage"),
    "evaluation.batch_size": Meaning(Fit.EXACT, "the evaluate stage"),
    "evaluation.pass_threshold": Meaning(Fit.EXACT, "xp.episode.metrics"),
    "evaluation.every": Meaning(Fit.EXACT, "xp.backends.trl.worker.held_out"),
    "backend.attention": Meaning(Fit.EXACT, "transformers' own choice, which is sdpa"),
    "backend.parallel.tensor": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer is data-parallel only."),
    "backend.parallel.pipeline": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer is data-parallel only."),
    "backend.parallel.context": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer is data-parallel only."),
    "backend.parallel.expert": Meaning(Fit.UNSUPPORTED, REFUSED, "GRPOTrainer is data-parallel only."),
    "backend.parallel.offload_parameters": Meaning(Fit.EXACT, "fsdp_offload_params"),
    "backend.parallel.offload_optimizer": Meaning(
        Fit.EMULATED, "fsdp_offload_params", "FSDP2 offloads parameters, gradients and optimizer state together."
    ),
    "backend.parallel.offload_reference": Meaning(
        Fit.EMULATED, "fsdp_offload_params", "FSDP2 offloads the reference together with the policy."
    ),
}
"""Fields that no key of GRPOConfig carries, for this spec or for any, and what does."""

DIFFERENT: Mapping[str, tuple[str, str]] = {
    "model.dtype": (
        "torch_dtype=float32 for the weights",
        "Trained weights are kept in float32 and computed with in this type; frozen ones (LoRA) are loaded in it.",
    ),
    "algorithm.policy_loss": ("", ""),
    "algorithm.advantage_scale": ("", "1e-4 is added to the standard deviation (SkyRL, Slime: 1e-6)."),
    "training.weight_decay": ("", "Biases and norms are excluded."),
    "training.entropy_coef": ("", "The bonus is a token mean per micro-batch, whatever the loss averages over."),
    "training.top_p": ("", "With vLLM, log-probabilities are those after the cut; with transformers, before it."),
    "training.top_k": ("", "With vLLM, log-probabilities are those after the cut; with transformers, before it."),
    "seed": ("", "An engine's own seed is its rank; the order of tasks is the same on every backend."),
}
"""Rendered fields whose meaning differs in a detail: what else carries it, and the detail; empty where nothing does."""


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Leaf field (as a key path) -> what becomes of it."""
    return {path: _meaning(spec, path) for path in _leaves(spec)}


def _meaning(spec: RunSpec, path: str) -> Meaning:
    if (length := length_meaning(spec, path, "max_steps")) is not None:
        return length
    if path.startswith("model.build."):
        return CARRIED["model.build"]
    if path.startswith("model.architecture."):
        return CARRIED["model.architecture"]
    if path.startswith("algorithm.critic."):
        return CARRIED["algorithm.critic"]
    if path == "algorithm.estimator" and spec.algorithm.estimator is not Estimator.GRPO:
        return Meaning(Fit.UNSUPPORTED, REFUSED, f"GRPOTrainer {OTHER_ESTIMATORS[spec.algorithm.estimator]}.")
    if path == "backend.parallel.strategy":
        return Meaning(Fit.EXACT, _strategy(spec))
    if path.startswith("backend.engine."):
        return _engine(spec, path)
    rendered = _rendered(spec, path)
    if path in CARRIED and not rendered:
        return CARRIED[path]
    if path == "algorithm.loss_aggregation":
        is_over_tokens = spec.algorithm.loss_aggregation is LossAggregation.TOKEN_MEAN
        return Meaning(Fit.EMULATED, rendered, TOKENS_OF_A_STEP if is_over_tokens else ALL_EPISODES)
    also, note = DIFFERENT.get(path, (CARRIED[path].receives if path in CARRIED else "", ""))
    receives = "; ".join(part for part in (rendered, also) if part)
    return Meaning(Fit.EMULATED if note else Fit.EXACT, receives, note)


def _engine(spec: RunSpec, path: str) -> Meaning:
    name = path.rpartition(".")[2]
    if rendered := _rendered(spec, path):
        return Meaning(Fit.EXACT, rendered)
    if spec.backend.engine.name is EngineName.TRANSFORMERS:
        return Meaning(Fit.EXACT, "nothing: the policy itself generates")
    if not is_colocated(spec):
        return Meaning(Fit.EXACT, f"vllm serve {SERVE[name]}")
    if name == "accelerators":
        return Meaning(Fit.EXACT, "none of their own")
    if name == "max_sequences":
        note = "TRL gives its engine all episodes of its processes at once; refused where those are more."
        return Meaning(Fit.EMULATED, "max_num_seqs, set by TRL", note)
    return Meaning(
        Fit.UNSUPPORTED, "vLLM's default", "TRL's colocated engine cannot be told; refused where it differs."
    )


SERVE: Mapping[str, str] = {
    "accelerators": "on these, --data-parallel-size engines of them",
    "tensor_parallel": "--tensor-parallel-size",
    "memory_fraction": "--gpu-memory-utilization",
    "max_sequences": "--max-num-seqs",
    "eager": "--enforce-eager",
    "prefix_caching": "--enable-prefix-caching",
}


def _strategy(spec: RunSpec) -> str:
    processes = world_size(spec)
    if processes == 1:
        return "nothing: one process holds the whole model"
    return f"accelerate launch, distributed_type={'FSDP' if spec.backend.parallel.strategy == 'fsdp2' else 'MULTI_GPU'}"


def _rendered(spec: RunSpec, path: str) -> str:
    knob = KNOBS.get(path)
    return "" if knob is None else ", ".join(f"{key}={value}" for key, value in knob(spec).items())


def _leaves(spec: RunSpec) -> Iterator[str]:
    for section in MEANT:
        value: Any = spec
        for name in section.split("."):
            value = getattr(value, name)
        yield from _paths(section, value)


def _paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Section):
        for name in type(value).model_fields:
            yield from _paths(f"{path}.{name}", getattr(value, name))
    else:
        yield path
