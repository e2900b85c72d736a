"""What the service gets of each field: keys of its requests, xp's own work, or a refusal with its proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from xp.contrib.tinker.worker.state import has_state
from xp.fields.field import OWN, Column, Native
from xp.fields.run import SEED_OF_TURNS
from xp.fields.shared import is_ahead
from xp.lib.text import word_list
from xp.spec import Estimator, PolicyLoss, RatioFrom, RatioLevel, Reference, RunSpec
from xp.spec.training import OnNonfinite, Optimizer, Unfinished

WORKER: Final = "xp.contrib.tinker.worker"
ALPHA: Final = 32.0
"""The API has no field for it, and both services have this one (thinkingmachines.ai/blog/lora)."""
LOSSES: Final = {PolicyLoss.CLIP: "ppo", PolicyLoss.CISPO: "cispo"}
CUT: Final = "Tokens are drawn from these; log-probabilities, the service's in both roles, are those of all tokens."
LATER: Final = "It is known after the update; the first update of a step is checked."


def _by(module: str, what: str = "") -> Column:
    """Column of a field that a program of this package carries out."""
    return Column(implemented_by=f"{what or 'xp'}, by {WORKER}.{module}")


def _left(paths: Iterable[str], what: str) -> dict[str, Column]:
    """Columns of fields whose value makes no difference."""
    return dict.fromkeys(paths, Column(implemented_by=f"nothing: {what}"))


def _none(paths: Iterable[str], refuse: str, proof: str) -> dict[str, Column]:
    """Columns of fields that the service does not have."""
    return dict.fromkeys(paths, Column(refuse=refuse, proof=proof))


def needs_forward(spec: RunSpec) -> bool:
    """Returns whether the trainer's log-probabilities before a step's first update are asked for."""
    algorithm = spec.algorithm
    has_others = algorithm.distill is not None or spec.training.kl_coef > 0
    return algorithm.ratio_from is RatioFrom.TRAINER or algorithm.is_corrected or has_others


def _base_model(spec: RunSpec) -> Native:
    return {"base_model": spec.model.path}


def _no_start(spec: RunSpec) -> str | None:
    start = spec.training.initial_checkpoint
    if start is None or has_state(Path(spec.outputs) / start) or has_state(Path(start)):
        return None
    return (
        "the service takes no weights from here; name a checkpoint or the model of an earlier run of backend=tinker"
        " (runs/RUN/checkpoints/step-N, runs/RUN/model), or set null"
    )


def _sample_sizes(spec: RunSpec) -> str | None:
    """Returns why the number of updates does not divide a step's groups."""
    training = spec.training
    if training.prompts_per_step % training.updates_per_step == 0:
        return None
    return f"must divide training.prompts_per_step={training.prompts_per_step}; set a divisor"


OF_SERVICE: Final = "the service has the accelerators, and no key for them"
COLUMNS: Final[Mapping[str, Column]] = {
    "": Column({"train_attn": True, "train_mlp": True, "train_unembed": False}),
    "hardware.accelerators_per_node": Column(
        refuse_if=lambda s: s.hardware.accelerators_per_node > 0,
        refuse="the service has the accelerators; set hardware=tinker",
        proof=OWN,
    ),
    "hardware.num_nodes": Column(
        refuse_if=lambda s: s.hardware.num_nodes > 1,
        refuse="one process sends the requests; set 1",
        proof=OWN,
    ),
    "seed": Column("seed", note=SEED_OF_TURNS, proof=OWN),
    "model.path": Column(_base_model, implemented_by="the tokenizer is read here, by xp"),
    "model.dtype": Column(
        implemented_by="the type in which xp merges the adapters",
        note="The service chooses its own for training and sampling.",
        proof="tinker::a_request_has_no_data_type",
    ),
    "model.lora": Column(
        implemented_by="create_lora_training_client, by xp",
        refuse_if=lambda s: s.model.lora is None,
        refuse="the service trains adapters alone; set model.lora={rank: 32, alpha: 32, dropout: 0, target_modules: null}",
        proof="tinker::a_model_is_made_with_adapters",
    ),
    "model.lora.rank": Column("rank"),
    "model.lora.alpha": Column(
        implemented_by=f"the service's own {ALPHA:g}",
        refuse_if=lambda s: s.model.lora is not None and s.model.lora.alpha != ALPHA,
        refuse=f"the API has no alpha, and the service's is {ALPHA:g}; set {ALPHA:g}, and scale training.learning_rate",
        proof="tinker::alpha_is_the_services_own",
    ),
    "model.lora.dropout": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.model.lora is not None and s.model.lora.dropout > 0,
        refuse="the API has no dropout; set 0",
        proof="tinker::adapters_have_a_rank_a_seed_and_three_parts",
    ),
    "model.lora.target_modules": Column(
        implemented_by="train_attn, train_mlp",
        refuse_if=lambda s: s.model.lora is not None and s.model.lora.target_modules is not None,
        refuse="the API names attention and MLP, not single layers; set null, which is all but the head",
        proof="tinker::adapters_have_a_rank_a_seed_and_three_parts",
    ),
    **_none(
        ["model.router_replay"],
        "the API returns no choice of experts; set false, or use backend=skyrl or slime",
        "tinker::a_sample_is_tokens_and_log_probabilities",
    ),
    "model.images": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.model.images is not None,
        refuse="xp sends a service texts alone; set null, or use backend=trl or skyrl",
        proof=OWN,
    ),
    "model.train_vision": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.model.train_vision,
        refuse="xp sends a service texts alone; set false, or use backend=trl or skyrl",
        proof=OWN,
    ),
    **_left(["model.architecture"], "the service has the network"),
    "algorithm.estimator": Column(
        implemented_by="xp.episode.advantages",
        refuse_if=lambda s: s.algorithm.estimator is Estimator.GAE,
        refuse="the service has no critic; use algorithm=grpo, or backend=skyrl or slime",
        proof="tinker::its_losses_are_four",
    ),
    **_none(
        ["algorithm.critic"],
        "the service has no critic; set null, or use backend=skyrl or slime",
        "tinker::its_losses_are_four",
    ),
    "algorithm.distill": _by("penalties", "compute_logprobs of the teacher on the service"),
    **dict.fromkeys(
        [f"algorithm.{name}" for name in ("advantage_fn", "advantage_scale")],
        Column(implemented_by="xp.episode.advantages"),
    ),
    "algorithm.policy_loss": Column(
        lambda s: {"loss_fn": LOSSES.get(s.algorithm.policy_loss)},
        refuse_if=lambda s: s.algorithm.policy_loss not in LOSSES,
        refuse="the service has no such loss; use algorithm=grpo or cispo, or backend=trl or skyrl",
        proof="tinker::its_losses_are_four",
    ),
    **_none(
        ["algorithm.sapo"],
        "the service has no such loss; use algorithm=grpo or cispo, or backend=trl or skyrl",
        "tinker::its_losses_are_four",
    ),
    "algorithm.ratio_level": Column(
        implemented_by="the service's losses, token by token",
        refuse_if=lambda s: s.algorithm.ratio_level is RatioLevel.SEQUENCE,
        refuse="the service's ratios are of tokens; set token, or use backend=trl, skyrl or slime",
        proof="tinker::ratios_are_of_tokens",
    ),
    "algorithm.clip_low": Column("clip_low_threshold", lambda low: 1 - low),
    "algorithm.clip_high": Column("clip_high_threshold", lambda high: 1 + high),
    **_none(
        ["algorithm.dual_clip"],
        "the service's ppo has two bounds; set null, or use backend=trl or skyrl",
        "tinker::a_loss_has_two_bounds",
    ),
    **dict.fromkeys(
        ["algorithm.loss_aggregation", "algorithm.loss_length"],
        _by("batch", "factors of the advantages"),
    ),
    **dict.fromkeys(
        ["algorithm.kl_estimator", "algorithm.use_kl_in_reward"],
        _by("penalties", "compute_logprobs of the model without adapters"),
    ),
    **dict.fromkeys(
        [
            "algorithm.importance_correction",
            "algorithm.importance_lower",
            "algorithm.importance_upper",
            "algorithm.importance_mask",
            "algorithm.mask_lower",
            "algorithm.mask_upper",
        ],
        _by("batch", "factors of the advantages, of xp.worker.importance"),
    ),
    "algorithm.ratio_from": Column(
        lambda s: {"old_logprobs": s.algorithm.ratio_from.value, "forward": needs_forward(s)},
        implemented_by=f"`logprobs` of each Datum, by {WORKER}.batch",
    ),
    **dict.fromkeys(
        [f"algorithm.{name}" for name in ("mask_truncated", "zero_variance_filter")],
        _by("rollouts"),
    ),
    **_none(
        ["algorithm.dynamic_sampling"],
        "xp resamples no groups for a service; set false (algorithm.zero_variance_filter leaves them out), or use"
        " backend=skyrl or slime",
        OWN,
    ),
    **_left(
        ["algorithm.max_sample_batches", "training.generation_prompts"],
        "there is no dynamic sampling",
    ),
    "training.initial_checkpoint": Column(
        implemented_by=f"create_training_client_from_state, by {WORKER}.state",
        refuse=_no_start,
        proof="tinker::weights_are_loaded_from_its_own_paths",
    ),
    **dict.fromkeys(
        [
            f"training.{name}"
            for name in word_list("""
                num_steps epochs prompts_per_step group_size passes_per_step
                checkpoint_every export_every keep_checkpoints
            """)
        ],
        _by("train"),
    ),
    "training.updates_per_step": Column(
        implemented_by=f"xp, by {WORKER}.train", refuse=_sample_sizes, proof=OWN
    ),
    "training.max_staleness": Column(
        implemented_by=lambda s: (
            "xp.worker.rollout_thread" if is_ahead(s) else "rollouts by turns, by xp"
        ),
        note_if=is_ahead,
        note="The stage ends before its first step where the service samples from the weights that it trains.",
        proof="tinker::skyrls_jax_server_samples_from_the_weights_that_it_trains",
    ),
    "training.unfinished": Column(
        implemented_by="nothing: a step's episodes have one policy",
        only=Unfinished.WAIT,
        refuse="xp plays a step with one policy; set wait, or use backend=skyrl",
        proof=OWN,
    ),
    **_left(
        [f"training.{name}" for name in ("micro_batch_size", "gradient_checkpointing")],
        "the service divides a batch itself",
    ),
    **_none(
        ["training.max_tokens_per_micro_batch"],
        "the service divides a batch itself; set null",
        "tinker::a_request_has_no_micro_batch",
    ),
    "training.optimizer": Column(
        implemented_by="the service's AdamW",
        only=Optimizer.ADAMW,
        refuse="the service has AdamW alone; set adamw, or use backend=trl",
        proof="tinker::its_optimizer_is_adamw",
    ),
    "training.learning_rate": Column("learning_rate"),
    **dict.fromkeys(
        [f"training.{name}" for name in ("lr_schedule", "min_learning_rate", "warmup_updates")],
        _by("train", "learning_rate of each optim_step, of xp.worker.learning_rate"),
    ),
    **_left(["training.critic_learning_rate"], "there is no critic"),
    "training.weight_decay": Column("weight_decay"),
    "training.adam_beta1": Column("beta1"),
    "training.adam_beta2": Column("beta2"),
    "training.adam_eps": Column("eps"),
    "training.max_grad_norm": Column(
        "grad_clip_norm",
        note="SkyRL's server does not cut the gradient.",
        proof="tinker::skyrls_server_does_not_cut_gradients",
    ),
    "training.kl_coef": Column(
        implemented_by=f"rewards, by {WORKER}.penalties",
        refuse_if=lambda s: s.training.kl_coef > 0 and not s.algorithm.use_kl_in_reward,
        refuse="the service's losses have no penalty; set 0, or algorithm.use_kl_in_reward=true, which lowers the rewards",
        proof="tinker::a_loss_has_two_bounds",
    ),
    "training.reference": Column(
        implemented_by=f"the model without adapters, by {WORKER}.penalties",
        refuse_if=lambda s: s.training.kl_coef > 0 and s.training.reference is Reference.SFT,
        refuse="the reference is the model without adapters; set initial, or training.kl_coef=0",
        proof=OWN,
    ),
    **_none(
        ["training.reference_every"],
        "xp keeps the model as the reference on a service; set null, or use backend=trl or slime",
        OWN,
    ),
    "training.entropy_coef": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.training.entropy_coef > 0,
        refuse="the service's losses have no entropy; set 0",
        proof="tinker::a_loss_has_two_bounds",
    ),
    "training.temperature": Column(
        "temperature",
        refuse_if=lambda s: s.training.temperature != 1,
        refuse="the service trains at temperature 1, whatever it samples with; set 1",
        proof="tinker::a_loss_has_no_temperature",
    ),
    "training.top_p": Column(
        "top_p",
        note=CUT,
        note_if=lambda s: s.training.top_p < 1,
        proof="tinker::log_probabilities_are_of_all_tokens",
    ),
    "training.top_k": Column(
        "top_k",
        lambda top_k: top_k or -1,
        note=CUT,
        note_if=lambda s: s.training.top_k is not None,
        proof="tinker::log_probabilities_are_of_all_tokens",
    ),
    "training.min_p": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.training.min_p > 0,
        refuse="the API has no min_p; set 0",
        proof="tinker::sampling_has_six_parameters",
    ),
    "training.repetition_penalty": Column(
        implemented_by="nothing: off",
        refuse_if=lambda s: s.training.repetition_penalty != 1,
        refuse="the API has no such penalty; set 1",
        proof="tinker::sampling_has_six_parameters",
    ),
    "training.max_response_tokens": Column(implemented_by="xp.worker.token_budget"),
    "training.stop": Column(
        implemented_by="nothing: the tokens that end a turn are `stop`",
        refuse_if=lambda s: bool(s.training.stop),
        refuse="the API takes tokens or texts that end a turn, not both; set []",
        proof="tinker::stops_are_tokens_or_texts",
    ),
    "training.on_nonfinite": Column(
        implemented_by="xp.episode.finite",
        only=OnNonfinite.STOP,
        refuse="the request for an update is sent before its loss is known; set stop",
        proof=OWN,
    ),
    "training.max_logprob_gap": Column(
        implemented_by=f"xp, by {WORKER}.train",
        note=lambda s: LATER if s.algorithm.ratio_from is RatioFrom.ENGINE else "",
        proof=OWN,
    ),
    **_none(
        ["training.deterministic"],
        "the API has seeds of samples and no deterministic kernels; set false",
        "tinker::sampling_has_six_parameters",
    ),
    **dict.fromkeys(
        [f"evaluation.{name}" for name in ("every", "keep_best", "patience", "batch_size")],
        _by("held_out"),
    ),
    **_left(
        [
            "backend.attention",
            "backend.parallel.strategy",
            "backend.engine.name",
            "backend.engine.placement",
            "backend.engine.memory_fraction",
            "backend.engine.prefix_caching",
            "backend.convert_model",
        ],
        "the service has its own",
    ),
    **_none(
        [
            *(
                f"backend.parallel.{name}"
                for name in word_list("""
                    tensor pipeline first_stage_layers last_stage_layers context expert
                    offload_parameters offload_optimizer cpu_optimizer offload_reference
                """)
            ),
            *(
                f"backend.engine.{name}"
                for name in word_list("""
                    accelerators tensor_parallel max_batched_tokens eager
                    quantization quantized_model kv_cache_dtype expert_parallel speculative
                """)
            ),
        ],
        f"{OF_SERVICE}; leave it out",
        "tinker::a_model_is_made_with_adapters",
    ),
    "backend.engine.max_sequences": _by("engine", "requests for samples at a time"),
}
SFT_COLUMNS: Final[Mapping[str, Column]] = {
    **dict.fromkeys(
        [
            f"sft.{name}"
            for name in word_list("""
                epochs num_updates batch_size learning_rate lr_schedule
                min_learning_rate warmup_updates checkpoint_every
            """)
        ],
        _by("sft"),
    ),
    **_left(["sft.micro_batch_size"], "the service divides a batch itself"),
    **_none(
        ["sft.max_tokens_per_micro_batch"],
        "the service divides a batch itself; set null",
        "tinker::a_request_has_no_micro_batch",
    ),
    "sft.overrides": Column(
        implemented_by="nothing: there are none",
        refuse_if=lambda s: bool(s.sft.overrides),
        refuse="a request of fine-tuning has no further keys; leave it out",
        proof=OWN,
    ),
}
