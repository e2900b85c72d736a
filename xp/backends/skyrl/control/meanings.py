"""What each field of a spec means to SkyRL: the rows of the parity table, made from the knobs themselves."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends.base import Fit, Meaning, length_meaning, meant_fields
from xp.backends.skyrl.control.geometry import is_colocated, is_megatron
from xp.backends.skyrl.control.knobs import KNOBS, is_own, is_rehearsal
from xp.backends.skyrl.control.overrides import assignment
from xp.backends.skyrl.control.refusals import FSDP_ADAM_EPS, refusals
from xp.backends.skyrl.worker.config import STEPS_KEY
from xp.spec import LossAggregation, RunSpec

CARRIED: Mapping[str, str] = {
    "model.name": "the run's record",
    "model.path": "trainer.ref.model.path, and trainer.policy.model.path without an initial_checkpoint",
    "model.build": "xp.builtin.model, in the model stage",
    "model.dialect": "xp.episode",
    "model.max_context_tokens": "checked against the longest episode when planning",
    "model.tools_prompt": "xp.episode.tokens",
    "model.architecture": "the model's own config.json",
    "algorithm.name": "the run's record",
    "algorithm.critic": "trainer.critic.model.path=null",
    "algorithm.ratio_level": "trainer.algorithm.policy_loss_type, with policy_loss",
    "algorithm.advantage_fn": "xp.backends.skyrl.worker.experiment, where it is set",
    "algorithm.mask_truncated": "loss masks from xp.backends.skyrl.worker.generator",
    "training.initial_checkpoint": "trainer.policy.model.path; null: model.path",
    "training.adam_beta2": "trainer.policy.optimizer_config.adam_betas, with adam_beta1",
    "training.shuffle": "xp.tasks.schedule; SkyRL's loader keeps the order",
    "training.max_void_fraction": "xp.backends.skyrl.worker.steps",
    "training.on_nonfinite": "xp.backends.skyrl.worker.steps; SkyRL's FSDP2 leaves such an update out itself",
    "training.max_logprob_gap": "xp.backends.skyrl.worker.trainer, over a step's episodes, before an update is made",
    "evaluation.num_tasks": "xp.tasks.rounds: rows of the held-out view",
    "evaluation.samples_per_task": "xp.tasks.rounds: rows of the held-out view",
    "evaluation.before_training": "the evaluate stage",
    "evaluation.pass_threshold": "xp.episode.metrics",
    "backend.engine.name": "SkyRL's inference interface",
}
"""Fields that no key of SkyRL's carries, and what does."""

ALSO: Mapping[str, str] = {
    "model.chat_template": "xp.episode.tokens; earlier turns stay as written",
    "training.max_prompt_tokens": "xp.tasks.load, which leaves longer prompts out",
    "training.max_response_tokens": "xp.backends.skyrl.worker.generator, which gives a turn what is left",
}
"""Fields that a key carries in part, and what does the rest."""

DIFFERENT: Mapping[str, str] = {
    "algorithm.dynamic_sampling": "A step that draws 30 batches without filling stops the run; void counts as 0 there.",
    "training.checkpoint_every": "SkyRL also writes each checkpoint as a Hugging Face model.",
    "training.entropy_coef": "The bonus is a token mean per micro-batch, whatever the loss averages over.",
    "evaluation.every": "SkyRL evaluates after the last step too.",
}
"""Rendered fields whose meaning differs in a detail wherever they are on."""

OWN = "xp.backends.skyrl.worker.advantages"
CUT = "The engine's log-probabilities are those after the cut, the trainer's those before it."


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Leaf field (as a key path) -> what becomes of it."""
    refused = {refusal.field: refusal.reason for refusal in refusals(spec)}
    return {path: _meaning(spec, path, refused) for path in meant_fields(spec)}


def _meaning(spec: RunSpec, path: str, refused: Mapping[str, str]) -> Meaning:
    why = refused.get("model.lora" if path.startswith("model.lora.") else path) or refused.get(path)
    if why is not None:
        return Meaning(Fit.UNSUPPORTED, "refused", why)
    if (length := length_meaning(spec, path, STEPS_KEY)) is not None:
        return length
    receives, note = _receives(spec, path), _note(spec, path)
    return Meaning(Fit.EMULATED if note else Fit.EXACT, receives, note)


def _receives(spec: RunSpec, path: str) -> str:
    if path == "training.adam_eps" and not is_megatron(spec):
        return f"torch.optim.AdamW's own {FSDP_ADAM_EPS}"
    owner = next((field for field in (*KNOBS, *CARRIED) if path == field or path.startswith(f"{field}.")), None)
    assert owner is not None, path  # a test walks every field
    if owner in CARRIED:
        return CARRIED[owner]
    keys = ", ".join(assignment(key, value) for key, value in KNOBS[owner](spec).items())
    also = OWN if is_own(spec) and owner in ("algorithm.estimator", "algorithm.advantage_scale") else ALSO.get(owner)
    return "; ".join(part for part in (keys, also) if part) or _without_keys(spec, path)


def _without_keys(spec: RunSpec, path: str) -> str:
    """What stands for a field that has keys under the other strategy only, or with a critic."""
    if path == "training.critic_learning_rate":
        return "nothing: there is no critic"
    if not is_megatron(spec):
        return "nothing: FSDP2 shards over all accelerators"
    return "SkyRL's own moves between the phases of colocated engines" if is_colocated(spec) else "nothing: off"


def _note(spec: RunSpec, path: str) -> str:
    """What is different about a field of this spec; empty where nothing is."""
    training, has_kl = spec.training, spec.training.kl_coef > 0
    notes = {
        "model.dtype": (
            not is_rehearsal(spec),
            "Trained weights are kept in float32 and computed with in this type.",
        ),
        "algorithm.kl_estimator": (has_kl, "k3 is cut at 10, and its log-ratio at 20."),
        "training.kl_coef": (
            has_kl and spec.algorithm.loss_aggregation is not LossAggregation.SEQUENCE_MEAN,
            "The penalty is a mean over episodes of their token means, whatever the loss averages over.",
        ),
        "training.weight_decay": (
            training.weight_decay > 0 and not is_megatron(spec),
            "Biases and norms decay too.",
        ),
        "training.micro_batch_size": (
            training.max_tokens_per_micro_batch is not None,
            "Unused: episodes are packed by tokens.",
        ),
        "training.max_tokens_per_micro_batch": (
            training.max_tokens_per_micro_batch is not None,
            "An episode that is longer gets a micro-batch of its own.",
        ),
        "algorithm.critic.discount": (True, "It counts tokens that the policy wrote; a tool's take no time."),
        "algorithm.critic.value_clip": (True, "The critic's loss is a mean over episodes of their token means."),
        "training.top_p": (training.top_p < 1, CUT),
        "training.top_k": (training.top_k is not None, CUT),
        "backend.parallel.offload_reference": (
            has_kl and is_colocated(spec) and not spec.backend.parallel.offload_reference,
            "While colocated engines generate, SkyRL moves it there in any case.",
        ),
        "backend.engine.name": (is_rehearsal(spec), "xp's stand-in answers in vLLM's place."),
        **{
            f"backend.engine.{name}": (is_rehearsal(spec), "xp's stand-in for vLLM has no use for it.")
            for name in ("memory_fraction", "max_sequences", "eager", "prefix_caching")
        },
        **{path: (_is_on(spec, path), note) for path, note in DIFFERENT.items()},
    }
    applies, note = notes.get(path, (False, ""))
    return note if applies else ""


def _is_on(spec: RunSpec, path: str) -> bool:
    section, _, name = path.partition(".")
    return bool(getattr(getattr(spec, section), name))
