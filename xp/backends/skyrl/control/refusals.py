"""What SkyRL cannot do, in xp's words: each refusal names the field and the way out."""

from __future__ import annotations

from collections.abc import Iterator

from xp.backends.base import Refusal, gap_refusals
from xp.backends.batch import batch_refusals
from xp.backends.skyrl.control.geometry import is_colocated, is_megatron
from xp.backends.skyrl.control.knobs import has_critic, is_own, is_rehearsal, max_tokens
from xp.backends.skyrl.control.overrides import override_refusals
from xp.episode.finite import OnNonfinite
from xp.spec import AdvantageScale, Attention, DType, EngineName, LrSchedule, RunSpec, Strategy

FSDP_ADAM_EPS = 1e-8
"""PyTorch's AdamW default: SkyRL's FSDP strategy has no key for it (fsdp_strategy.py `_fsdp_init_train_model`)."""


def refusals(spec: RunSpec) -> list[Refusal]:
    """Everything in the spec that this backend cannot do."""
    found = [*_placement(spec), *_attention(spec), *_engine(spec), *_training(spec), *_lora(spec), *_critic(spec)]
    found += gap_refusals(spec)
    # The arithmetic, and which keys are rendered, are about the layouts that are left.
    return found or [*batch_refusals(spec), *override_refusals(spec)]


def _placement(spec: RunSpec) -> Iterator[Refusal]:
    parallel = spec.backend.parallel
    if spec.backend.convert_model:
        yield Refusal("backend.convert_model", "SkyRL loads the Hugging Face model itself; set it to false")
    if parallel.strategy is Strategy.DDP:
        yield Refusal("backend.parallel.strategy", "SkyRL has no ddp; set fsdp2, which has the same mathematics")
    if not is_megatron(spec):
        return
    if spec.training.on_nonfinite is OnNonfinite.SKIP:
        yield Refusal(
            "training.on_nonfinite", "SkyRL's Megatron optimizer applies such an update; set stop, or strategy=fsdp2"
        )
    if parallel.offload_parameters:
        yield Refusal(
            "backend.parallel.offload_parameters",
            "SkyRL moves Megatron's parameters only between phases, where engines are colocated; set it to false",
        )
    if is_colocated(spec) and not parallel.offload_optimizer:
        yield Refusal(
            "backend.parallel.offload_optimizer",
            "SkyRL always moves Megatron's optimizer state to the host while colocated engines generate; set true",
        )
    if not is_colocated(spec) and parallel.offload_reference:
        yield Refusal(
            "backend.parallel.offload_reference",
            "SkyRL moves Megatron's reference model only where engines are colocated; set it to false",
        )


def _attention(spec: RunSpec) -> Iterator[Refusal]:
    if spec.backend.attention is Attention.FLASH:
        if is_rehearsal(spec):
            yield Refusal("backend.attention", "FlashAttention wants a GPU; set sdpa on hardware=cpu")
    elif is_megatron(spec):
        yield Refusal("backend.attention", "SkyRL's Megatron has flash or TransformerEngine's own; set flash")
    elif spec.backend.parallel.context > 1:
        yield Refusal(
            "backend.attention",
            "SkyRL's Ulysses works on sequences without padding, which it has for FlashAttention alone; set flash, or"
            " backend.parallel.context=1",
        )


def _engine(spec: RunSpec) -> Iterator[Refusal]:
    engine, parallel = spec.backend.engine, spec.backend.parallel
    wanted = EngineName.TRANSFORMERS if is_rehearsal(spec) else EngineName.VLLM
    if engine.name is not wanted:
        where = (
            "the rehearsal on a CPU generates with xp's own engine" if is_rehearsal(spec) else "SkyRL has vLLM alone"
        )
        yield Refusal("backend.engine.name", f"{where}; set it to {wanted}")
    if is_rehearsal(spec):
        for field, is_set, way_out in (
            ("backend.parallel.strategy", is_megatron(spec), "set fsdp2"),
            ("backend.parallel.context", parallel.context > 1, "set 1"),
            ("backend.engine.placement", not is_colocated(spec), "set colocated"),
            ("backend.engine.tensor_parallel", engine.tensor_parallel > 1, "set 1"),
            ("hardware.num_nodes", spec.hardware.num_nodes > 1, "set 1"),
        ):
            if is_set:
                yield Refusal(field, f"not on hardware=cpu; {way_out}, or choose hardware with accelerators")
    if not is_colocated(spec) and parallel.offload_optimizer:
        yield Refusal(
            "backend.parallel.offload_optimizer",
            "SkyRL moves optimizer state only where engines are colocated; set it to false",
        )
    shape = spec.model.architecture
    if shape is not None and not is_megatron(spec) and shape.num_heads % parallel.context:
        yield Refusal(
            "backend.parallel.context",
            f"Ulysses shares out attention heads, and {parallel.context} does not divide the {shape.num_heads} of"
            f" model={spec.model.name}; set a divisor",
        )


def _training(spec: RunSpec) -> Iterator[Refusal]:
    training, algorithm = spec.training, spec.algorithm
    if algorithm.advantage_scale is AdvantageScale.BATCH_STD and not is_own(spec):
        yield Refusal(
            "algorithm.advantage_scale",
            "SkyRL divides by the deviation of the group or by nothing; set group_std or none",
        )
    if is_megatron(spec) and training.lr_schedule is not LrSchedule.CONSTANT:
        yield Refusal(
            "training.lr_schedule",
            f"SkyRL's Megatron has constant alone, not {training.lr_schedule.value}; set constant, or"
            " backend.parallel.strategy=fsdp2",
        )
    if not is_megatron(spec) and training.adam_eps != FSDP_ADAM_EPS:
        yield Refusal(
            "training.adam_eps",
            f"SkyRL's FSDP uses PyTorch's {FSDP_ADAM_EPS} and has no key for another; set it to {FSDP_ADAM_EPS},"
            " or backend.parallel.strategy=megatron",
        )
    if not is_rehearsal(spec) and spec.model.dtype is not DType.BFLOAT16:
        yield Refusal(
            "model.dtype",
            f"SkyRL computes in bfloat16 on accelerators, whatever it is told, not in {spec.model.dtype.value};"
            " set bfloat16 (its FSDP keeps float32 master weights)",
        )
    if max_tokens(spec) > spec.model.max_context_tokens:
        yield Refusal(
            "training.max_response_tokens",
            f"max_prompt_tokens + max_response_tokens = {max_tokens(spec)} is more than the"
            f" {spec.model.max_context_tokens} tokens that model={spec.model.name} can take; lower one of them",
        )


def _lora(spec: RunSpec) -> Iterator[Refusal]:
    lora = spec.model.lora
    if lora is None:
        return
    if is_rehearsal(spec):
        yield Refusal("model.lora", "SkyRL's adapters need vLLM; set it to null on hardware=cpu")
    if lora.alpha != int(lora.alpha):
        yield Refusal("model.lora.alpha", f"SkyRL takes a whole number, not {lora.alpha}; round it")
    if spec.backend.engine.eager and not is_megatron(spec):
        yield Refusal(
            "backend.engine.eager", "SkyRL turns CUDA graphs on again for adapters, in silence; set it to false"
        )


def _critic(spec: RunSpec) -> Iterator[Refusal]:
    if not has_critic(spec):
        return
    if is_megatron(spec):
        yield Refusal(
            "algorithm.estimator",
            "SkyRL has no critic under Megatron; set backend.parallel.strategy=fsdp2, or use algorithm=grpo",
        )
    if not is_colocated(spec):
        yield Refusal(
            "backend.engine.placement",
            "SkyRL gives a critic accelerators of its own beside the policy's where engines have theirs, and xp counts"
            " none for it; set colocated",
        )
    if spec.model.lora is not None:
        yield Refusal(
            "model.lora",
            "SkyRL would train the critic's adapters on a head of random numbers that stays as it is; set it to null",
        )
