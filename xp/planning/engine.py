"""Reasons against an engine that all backends share: xp's own decoding, FP8, expert parallelism, speculation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from xp.models.files import config_of
from xp.models.network import WITH_HEADS, has_own_decoding, stated
from xp.planning.rows import is_corrected, is_to_engine
from xp.spec import DType, EngineName, RunSpec, SpeculativeMethod

OWN_DECODING = "xp's own decoding has no such setting; set {}, or on a GPU backend.engine.name=vllm"


def network_fields(spec: RunSpec) -> Mapping[str, Any]:
    """The fields of model.architecture: the spec's, or those that config.json states; empty: neither is known."""
    model = spec.model
    if model.architecture is not None:
        return model.architecture.model_dump()
    config = None if model.path is None else config_of(model.path, Path(spec.outputs), model.revision)
    return {} if config is None else stated(config)


def no_own_decoding(spec: RunSpec) -> str | None:
    """Returns why xp's own engine cannot decode the model; None if it can, or its family is not known."""
    if has_own_decoding(network_fields(spec)):
        return None
    return f"the layers of model={spec.model.name} keep more than xp's own decoding does, keys and values; set vllm"


def no_fp8(spec: RunSpec, name: str) -> str | None:
    """Returns why the engine's weights or its KV cache cannot be FP8; None if they can, or need not.

    Args:
        spec: the spec.
        name: the field below `backend.engine`.
    """
    engine = spec.backend.engine
    if getattr(engine, name) is None:
        return None
    if engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("null")
    # vLLM 0.30, quantization/fp8.py `get_supported_act_dtypes`.
    if name == "quantization" and (spec.hardware.accelerator == "cpu" or spec.model.dtype is DType.FLOAT32):
        return "the engine quantises weights of bfloat16 on a GPU; set null"
    if is_corrected(spec) or is_to_engine(spec):
        return None
    return (
        "the engine's probabilities then differ from the trainer's, and the update needs a correction for it; set"
        " algorithm.importance_correction=token_truncate (or another), algorithm.ratio_from=engine, or null here"
    )


def no_expert_parallel(spec: RunSpec, sizes: Collection[int], what: str) -> str | None:
    """Returns why an engine's experts cannot be divided among so many accelerators; None if they can, or need not.

    Args:
        spec: the spec.
        sizes: the sizes above 1 that the engine supports.
        what: the accelerators that these sizes are of.
    """
    size, shape = spec.backend.engine.expert_parallel, spec.model.architecture
    if size == 1:
        return None
    if spec.backend.engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("1")
    experts = getattr(shape, "num_experts", None)
    if shape is not None and not experts:
        return f"model={spec.model.name} is dense and has no experts to divide; set 1"
    if experts and experts % size:
        return f"must divide the {experts} experts of model={spec.model.name}; got {size}"
    if size in sizes:
        return None
    legal = ", ".join(map(str, sorted({1, *sizes})))
    return f"must be 1, or fit {what}: {legal}; got {size}"


def no_min_p(spec: RunSpec) -> str | None:
    """Returns why `training.min_p` has no effect; None if it has, or is off. Source: vLLM 0.30, sampling_params.py
    `_validate_spec_decode`."""
    is_off = spec.training.min_p == 0 or spec.backend.engine.speculative is None
    return None if is_off else "engines that guess tokens have no min_p; set 0, or backend.engine.speculative=null"


def no_speculation(spec: RunSpec) -> str | None:
    """Returns why the engine cannot guess tokens; None if it can, or need not."""
    speculative, shape = spec.backend.engine.speculative, spec.model.architecture
    if speculative is None:
        return None
    if spec.backend.engine.name is EngineName.TRANSFORMERS:
        return OWN_DECODING.format("null")
    if spec.hardware.accelerator == "cpu":
        return "it is not tested on a CPU; set null"
    is_without = shape is not None and shape.model_type not in WITH_HEADS
    if speculative.method is SpeculativeMethod.MTP and is_without:
        return (
            f"model={spec.model.name} has no heads of multi-token prediction; set null, or method=draft with a smaller"
            " model on backend=trl"
        )
    return None
