"""What each field of a spec means to Slime: the rows of the parity table, made from the knobs themselves."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends.base import Fit, Meaning, length_meaning, meant_fields
from xp.backends.slime.control.architecture import SHAPE
from xp.backends.slime.control.flags import Flags, words
from xp.backends.slime.control.geometry import is_colocated
from xp.backends.slime.control.knobs import KNOBS
from xp.backends.slime.worker.config import STEPS_FLAG
from xp.spec import RunSpec

ROLLOUT = "xp.backends.slime.worker.rollout"
REFUSED = "refused where it is set"
LEFT_OUT = "nothing: the flag is left out"

CARRIED: Mapping[str, Meaning] = {
    "model.name": Meaning(Fit.EXACT, "the run's record"),
    "model.build": Meaning(Fit.UNSUPPORTED, REFUSED, "A model that is made on the spot has no flags for Megatron."),
    "model.dialect": Meaning(Fit.EXACT, "xp.episode"),
    "model.chat_template": Meaning(
        Fit.EXACT, "arguments of the chat template, in xp.episode.tokens; earlier turns stay as written"
    ),
    "model.tools_prompt": Meaning(Fit.EXACT, "xp.episode.tokens"),
    "model.lora": Meaning(Fit.UNSUPPORTED, REFUSED, "Slime has no adapters."),
    "algorithm.name": Meaning(Fit.EXACT, "the run's record"),
    "algorithm.advantage_fn": Meaning(Fit.EXACT, "xp.backends.slime.worker.advantages, in Slime's rollout process"),
    "algorithm.mask_truncated": Meaning(Fit.EXACT, f"Sample.remove_sample, by {ROLLOUT}"),
    "training.critic_learning_rate": Meaning(Fit.EXACT, "lr of the role critic in --megatron-config-path"),
    "training.initial_checkpoint": Meaning(
        Fit.EXACT,
        "--load until the run has a checkpoint of its own, and --hf-checkpoint; null: --ref-load is the start",
    ),
    "training.passes_per_step": Meaning(Fit.UNSUPPORTED, REFUSED, "Slime passes over a step's episodes once."),
    "training.max_prompt_tokens": Meaning(Fit.EXACT, "xp.tasks.load leaves longer prompts out of the view"),
    "training.keep_checkpoints": Meaning(
        Fit.EMULATED, "xp.backends.slime.worker.checkpoints", "Slime deletes none; xp does, once a newer one is whole."
    ),
    "training.shuffle": Meaning(Fit.EXACT, "xp.tasks.schedule; the view has xp's order"),
    "training.max_void_fraction": Meaning(Fit.EXACT, "xp.backends.slime.worker.steps"),
    "training.max_logprob_gap": Meaning(
        Fit.EMULATED,
        "xp.backends.slime.worker.training, of Slime's train_rollout_logprob_abs_diff",
        "Slime tells the gap of an update after it is made; the first one of a step is checked.",
    ),
    "evaluation.num_tasks": Meaning(Fit.EXACT, "xp.tasks.rounds: lines of the held-out view"),
    "evaluation.samples_per_task": Meaning(Fit.EXACT, "xp.tasks.rounds: lines of the held-out view"),
    "evaluation.before_training": Meaning(Fit.EXACT, "the evaluate stage"),
    "evaluation.pass_threshold": Meaning(Fit.EXACT, "xp.episode.metrics"),
    "evaluation.batch_size": Meaning(
        Fit.EMULATED, "--sglang-server-concurrency of the evaluate stage", "Rounded up to whole episodes an engine."
    ),
    "backend.parallel.strategy": Meaning(Fit.EXACT, "--train-backend megatron"),
    "backend.parallel.offload_parameters": Meaning(Fit.UNSUPPORTED, REFUSED, "Megatron has no such thing."),
    "backend.engine.name": Meaning(Fit.EXACT, "SGLang, Slime's only engine"),
}
"""Fields that no flag carries, and what does."""

SHARED: Mapping[str, str] = {
    "algorithm.policy_loss": "algorithm.estimator",
    "algorithm.ratio_level": "algorithm.estimator",
}
"""Fields that are one flag with another field."""

OF_CRITIC: Mapping[str, str] = {
    "algorithm.critic.discount": "--gamma",
    "algorithm.critic.gae_lambda": "--lambd",
    "algorithm.critic.value_clip": "--value-clip",
}
"""Leaf of the critic -> its flag."""

NOTES: Mapping[str, str] = {
    "seed": "SGLang's sampling is seeded per engine, so that the same seed gives other episodes on other layouts.",
    "algorithm.critic.gae_lambda": "Over the tokens that the policy wrote, by xp.backends.slime.worker.gae.",
    "algorithm.dynamic_sampling": "A dropped group draws a whole batch of fresh prompts; what is left over is lost.",
    "training.weight_decay": "Biases and norms are excluded.",
    "backend.engine.max_sequences": "Slime starts all episodes of a step at once; the engine queues what is over.",
}
"""Rendered fields whose meaning differs in a detail."""

BESIDE: Mapping[str, str] = {
    "training.on_nonfinite": "xp.backends.slime.worker.training",
    "training.max_tokens_per_turn": f"max_new_tokens of each turn, by {ROLLOUT}",
    "training.max_response_tokens": ROLLOUT,
    "algorithm.estimator": "xp.backends.slime.worker.advantages",
    "algorithm.advantage_scale": "xp.backends.slime.worker.advantages",
    "evaluation.temperature": "the evaluate stage",
}
"""Rendered fields that a part of xp carries too."""


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Leaf field (as a key path) -> what becomes of it."""
    return {path: _meaning(spec, path) for path in meant_fields(spec)}


def _meaning(spec: RunSpec, path: str) -> Meaning:
    if (length := length_meaning(spec, path, STEPS_FLAG)) is not None:
        return length
    for whole in ("model.build", "model.lora"):
        if path.startswith(whole):
            return CARRIED[whole]
    if path.startswith("model.architecture"):
        return Meaning(Fit.EXACT, _shape(spec, path.rpartition(".")[2]))
    if path == "training.critic_learning_rate" and spec.algorithm.critic is None:
        return Meaning(Fit.EXACT, "nothing: there is no critic")
    if path in CARRIED:
        return CARRIED[path]
    if path.startswith("backend.parallel.offload_"):
        return _offload(spec, path)
    flags = KNOBS["algorithm.critic" if path in OF_CRITIC else SHARED.get(path, path)](spec)
    own = {OF_CRITIC[path]: flags[OF_CRITIC[path]]} if path in OF_CRITIC else flags
    parts = (_line(own), BESIDE.get(path, ""))
    received = "; ".join(part for part in parts if part) or LEFT_OUT
    note = NOTES.get(path, "")
    return Meaning(Fit.EMULATED if note else Fit.EXACT, received, note)


def _offload(spec: RunSpec, path: str) -> Meaning:
    if path.endswith("offload_reference"):
        is_same = spec.backend.parallel.offload_reference
        note = "" if is_same else "Slime keeps the reference in the host's memory whatever this says."
        return Meaning(Fit.EXACT if is_same else Fit.EMULATED, "the weights that Slime swaps in for its forward", note)
    if spec.backend.parallel.offload_optimizer:
        note = "The state stays in the host's memory, and Adam runs there too."
        return Meaning(Fit.EMULATED, _line(KNOBS[path](spec)), note)
    if is_colocated(spec):
        note = "With the rest of training, it goes to the host while colocated engines generate."
        return Meaning(Fit.EMULATED, "--colocate", note)
    return Meaning(Fit.EXACT, LEFT_OUT)


def _shape(spec: RunSpec, field: str) -> str:
    shape = spec.model.architecture
    return "Megatron's flags of the network" if shape is None else _line(SHAPE[field](shape)) or LEFT_OUT


def _line(flags: Flags) -> str:
    return " ".join(words(flags))
