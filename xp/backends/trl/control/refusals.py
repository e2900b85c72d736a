"""What TRL cannot do, or what its engine cannot be told: one sentence each, with the way out."""

from __future__ import annotations

from collections.abc import Iterator

from xp.backends.base import Refusal, gap_refusals
from xp.backends.batch import batch_refusals
from xp.backends.trl.control.geometry import geometry, world_size
from xp.backends.trl.control.knobs import FIXED, KNOBS, catalog, is_cispo, is_colocated, longest_sequence
from xp.errors import nearest
from xp.spec import (
    Attention,
    EngineName,
    Estimator,
    ImportanceCorrection,
    KlEstimator,
    LossAggregation,
    Placement,
    RunSpec,
    Strategy,
)

OTHER_ESTIMATORS = {
    Estimator.RLOO: "leaves no episode out of the mean of its group",
    Estimator.REINFORCE_PP: "centres on the mean of a group, not of the whole step",
    Estimator.GAE: "has no critic",
    Estimator.CUSTOM: "makes the advantages itself, and takes none from a function",
}
"""What TRL's GRPOTrainer has instead."""
BEHIND = {
    "output_dir": "outputs",
    "vllm_server_base_url": "backend.engine.placement",
    "vllm_group_port": "backend.engine.placement",
    "shuffle_dataset": "training.shuffle",
    "report_to": "tracking",
    "eval_strategy": "evaluation.every",
    "mask_truncated_completions": "algorithm.mask_truncated",
}
"""Keys that no knob writes, or that have one value for every run -> the field behind them all the same."""


def refusals(spec: RunSpec) -> list[Refusal]:
    """Everything in the spec that this backend cannot do."""
    found = [*_place(spec)]
    if found:
        return found  # the arithmetic below would speak of processes that cannot be
    own = [*_attention(spec), *_parallel(spec), *_engine(spec), *_algorithm(spec), *_lengths(spec), *_overrides(spec)]
    named = {refusal.field for refusal in own}
    return [*(refusal for refusal in batch_refusals(spec) if refusal.field not in named), *own]


def _place(spec: RunSpec) -> Iterator[Refusal]:
    hardware, engine = spec.hardware, spec.backend.engine
    if hardware.num_nodes > 1:
        yield Refusal(
            "hardware.num_nodes",
            f"a job of backend=trl is one process tree on one machine, not {hardware.num_nodes}; choose a hardware"
            " option with num_nodes=1, or backend=skyrl or slime, which spread over machines",
        )
    if spec.backend.convert_model:
        yield Refusal("backend.convert_model", "TRL trains the Hugging Face model itself; set it to false")
    is_cpu = hardware.accelerator == "cpu"
    if is_cpu and engine.name is EngineName.SGLANG:
        yield Refusal("backend.engine.name", "sglang is not what TRL drives; set transformers or vllm on hardware=cpu")
    if not is_cpu and engine.name is not EngineName.VLLM:
        yield Refusal("backend.engine.name", f"{engine.name} is not what TRL drives on a GPU; set vllm")
    is_short = engine.accelerators is not None and engine.accelerators >= max(1, hardware.accelerators_per_node)
    if is_short and not is_cpu:
        yield Refusal(
            "backend.engine.accelerators",
            f"{engine.accelerators} of {hardware.accelerators_per_node} accelerators leave none to train on; lower it,"
            " or set placement=colocated and accelerators=null",
        )
    if engine.name is EngineName.TRANSFORMERS and engine.placement is Placement.SEPARATE:
        yield Refusal("backend.engine.placement", "the policy itself generates; set colocated, or engine.name=vllm")


def _attention(spec: RunSpec) -> Iterator[Refusal]:
    if spec.backend.attention is Attention.FLASH:
        yield Refusal(
            "backend.attention", "no wheel of FlashAttention is published for the torch of TRL's lock; set sdpa"
        )


def _parallel(spec: RunSpec) -> Iterator[Refusal]:
    parallel, processes = spec.backend.parallel, world_size(spec)
    if parallel.strategy is Strategy.MEGATRON:
        yield Refusal("backend.parallel.strategy", "TRL has no Megatron; set fsdp2 or ddp, or backend=skyrl or slime")
    for name in ("tensor", "pipeline", "context", "expert"):
        if getattr(parallel, name) > 1:
            yield Refusal(
                f"backend.parallel.{name}", "TRL's GRPOTrainer is data-parallel only; set 1, or backend=skyrl or slime"
            )
    is_sharded = parallel.strategy is Strategy.FSDP2 and processes > 1
    if parallel.offload_parameters and not is_sharded:
        yield Refusal(
            "backend.parallel.offload_parameters",
            "only strategy=fsdp2 on two or more training processes offloads; set false",
        )
    for name in ("offload_optimizer", "offload_reference"):
        if getattr(parallel, name) and not parallel.offload_parameters:
            yield Refusal(
                f"backend.parallel.{name}",
                "FSDP2 offloads all of it or nothing; set backend.parallel.offload_parameters=true too, or this false",
            )
    if spec.model.lora is not None and is_sharded:
        yield Refusal(
            "backend.parallel.strategy",
            "TRL merges adapters for the engine process by process, which sharded weights do not allow; set ddp with"
            " model.lora",
        )


def _engine(spec: RunSpec) -> Iterator[Refusal]:
    engine, processes = spec.backend.engine, world_size(spec)
    if engine.name is not EngineName.VLLM:
        return
    owners = processes if engine.accelerators is None else engine.accelerators
    if owners % engine.tensor_parallel:
        yield Refusal(
            "backend.engine.tensor_parallel",
            f"{engine.tensor_parallel} does not divide the {owners} accelerators that generate",
        )
    if not is_colocated(spec):
        return
    way_out = "TRL's colocated engine cannot be told; set {}, or placement=separate"
    if engine.eager:
        yield Refusal("backend.engine.eager", way_out.format("false"))
    if not engine.prefix_caching:
        yield Refusal("backend.engine.prefix_caching", way_out.format("true"))
    at_once = geometry(spec).episodes_per_process * engine.tensor_parallel
    if at_once > engine.max_sequences:
        yield Refusal(
            "backend.engine.max_sequences",
            f"TRL's colocated engine takes all {at_once} episodes of its processes at once; set {at_once} or more, or"
            " placement=separate",
        )


def _algorithm(spec: RunSpec) -> Iterator[Refusal]:
    algorithm, training = spec.algorithm, spec.training
    if algorithm.estimator is not Estimator.GRPO:
        yield Refusal(
            "algorithm.estimator",
            f"TRL's GRPOTrainer {OTHER_ESTIMATORS[algorithm.estimator]}; use algorithm=grpo, or backend=skyrl or slime",
        )
    if is_cispo(spec):
        yield from _cispo(spec)
    if algorithm.dynamic_sampling:
        yield Refusal("algorithm.dynamic_sampling", "TRL's GRPOTrainer does not resample groups; set it to false")
    if training.kl_coef > 0 and algorithm.kl_estimator is not KlEstimator.K3:
        yield Refusal("algorithm.kl_estimator", "TRL has the k3 estimator only; set k3, or training.kl_coef=0")
    if (
        algorithm.importance_correction is not ImportanceCorrection.NONE
        and spec.backend.engine.name is EngineName.TRANSFORMERS
    ):
        yield Refusal(
            "algorithm.importance_correction",
            "with backend.engine.name=transformers the policy itself generates: there is no gap to correct; set none",
        )
    if training.initial_checkpoint is not None and spec.model.lora is not None and training.kl_coef > 0:
        yield Refusal(
            "training.initial_checkpoint",
            "with model.lora TRL's reference is the checkpoint without the adapters, not model.path; set"
            " training.kl_coef=0, or make the checkpoint the model (model.path), or use backend=skyrl",
        )
    yield from gap_refusals(spec)
    if training.max_tokens_per_micro_batch is not None:
        yield Refusal(
            "training.max_tokens_per_micro_batch",
            "TRL's micro-batches count episodes; set it to null and use training.micro_batch_size",
        )


def _cispo(spec: RunSpec) -> Iterator[Refusal]:
    """Source: trl 1.16.0, trl/trainer/grpo_trainer.py `_compute_loss`."""
    algorithm = spec.algorithm
    if algorithm.clip_low != 1:
        yield Refusal("algorithm.clip_low", "TRL's cispo has no lower bound; set 1, or use backend=skyrl or slime")
    if algorithm.loss_aggregation is not LossAggregation.TOKEN_MEAN:
        yield Refusal(
            "algorithm.loss_aggregation",
            f"TRL's cispo averages over tokens, not by {algorithm.loss_aggregation.value}; set token_mean, or use"
            " backend=skyrl or slime",
        )


def _lengths(spec: RunSpec) -> Iterator[Refusal]:
    if longest_sequence(spec) > spec.model.max_context_tokens:
        yield Refusal(
            "training.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {longest_sequence(spec)} is more than the"
            f" {spec.model.max_context_tokens} tokens that model={spec.model.name} can take; lower one of them",
        )


def owners(spec: RunSpec) -> dict[str, str]:
    """Key of GRPOConfig -> the field that it comes from; empty where every run has the same."""
    found = {key: field for field, knob in KNOBS.items() for key in knob(spec)} | dict.fromkeys(FIXED, "")
    return found | BEHIND


def _overrides(spec: RunSpec) -> Iterator[Refusal]:
    owned = owners(spec)
    for key in spec.backend.overrides:
        if key in owned:
            way_out = f"set {owned[key]}" if owned[key] else "it has the same value for every run"
            yield Refusal(f"backend.overrides.{key}", f"xp renders this key itself; {way_out}")
        elif key not in catalog():
            yield Refusal(f"backend.overrides.{key}", f"GRPOConfig has no such field{nearest(key, catalog())}")
