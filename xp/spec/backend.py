"""The trainer, its accelerators and its inference engine."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from xp.lib.plugins import Kind
from xp.spec.open_name import OpenName
from xp.spec.section import (
    Count,
    EnvVarName,
    ImagePlace,
    LocalPath,
    OpenKeys,
    Section,
    Size,
)


class BackendName(StrEnum):
    TRL = "trl"
    SKYRL = "skyrl"
    SLIME = "slime"


class RuntimeSpec(Section):
    """Python of the job; all null: the interpreter that runs xp."""

    python: LocalPath | None
    """Interpreter of a virtual environment that holds the trainer."""
    project_env: EnvVarName | None
    """Name of the variable that holds the path of a checkout."""
    image: ImagePlace | None
    """Container image that holds the trainer, for launchers that take one. None means that it is made from the lock."""
    image_checkouts: dict[EnvVarName, str]
    """Variable of a checkout -> its path in the image."""


class Strategy(StrEnum):
    """Placement of the policy on the accelerators that train it."""

    DDP = "ddp"
    """Data parallel: every accelerator holds the whole model."""
    FSDP2 = "fsdp2"
    """Parameters, gradients and optimizer state sharded over all (PyTorch's fully_shard)."""
    MEGATRON = "megatron"
    """Tensor, pipeline, context and expert parallel."""


class Parallel(Section):
    """Parallelism of training; the data-parallel size follows from the number of accelerators and the sizes here."""

    strategy: Strategy
    tensor: Size
    pipeline: Size
    first_stage_layers: Count | None
    """Layers of the first pipeline stage, which also has the embedding. None means as many as the stages between."""
    last_stage_layers: Count | None
    """Layers of the last pipeline stage, which also has the head. None means as many as the stages between."""
    context: Size
    """Accelerators that share one sequence: Megatron's context parallelism, Ulysses under fsdp2."""
    expert: Size
    offload_parameters: bool
    """Parameters and optimizer state live in the host's memory."""
    offload_optimizer: bool
    """Optimizer state lives in the host's memory while it is not used."""
    cpu_optimizer: bool
    """Adam's state stays in the host's memory, and its step runs there."""
    offload_reference: bool
    """The reference model lives in the host's memory while it is not used."""


class Attention(StrEnum):
    """Kernel of attention in training; engines choose their own."""

    FLASH = "flash"
    """FlashAttention 2, over sequences without padding."""
    SDPA = "sdpa"
    """PyTorch's scaled_dot_product_attention; needs no further package."""


class EngineName(StrEnum):
    """Inference engine."""

    TRANSFORMERS = "transformers"
    """xp's own batch decoding over a Hugging Face model; on hardware=cpu alone."""
    VLLM = "vllm"
    SGLANG = "sglang"


class Placement(StrEnum):
    COLOCATED = "colocated"
    """Training and generation take turns on the same accelerators."""
    SEPARATE = "separate"
    """The engines have accelerators of their own."""


class EngineDType(StrEnum):
    FP8 = "fp8"
    """8 bits (e4m3), half of bfloat16."""


class SpeculativeMethod(StrEnum):
    """Source of the tokens that the model verifies."""

    MTP = "mtp"
    """The model's own heads of multi-token prediction."""
    DRAFT = "draft"
    """A smaller model with the same vocabulary."""


class Speculative(Section):
    """Speculative decoding (arXiv:2211.17192): several tokens are guessed and verified in one pass; their distribution
    stays the model's. For the train stage: other evaluations sample without it."""

    method: SpeculativeMethod
    model: LocalPath | None
    """The draft, a Hugging Face id or directory, whose weights stay as they are; None with `method: mtp`."""
    num_tokens: Size
    """Tokens that are guessed at a time."""

    def faults(self) -> Iterator[str]:
        if (self.method is SpeculativeMethod.DRAFT) != (self.model is not None):
            yield "model must be given with method=draft, and null with method=mtp"


class EngineSpec(Section):
    """Generation of rollouts."""

    name: EngineName
    placement: Placement
    accelerators: Size | None
    """Accelerators reserved for the engines, over all nodes (on a CPU: processes beside those that train); None where
    colocated."""
    tensor_parallel: Size
    """Accelerators per engine."""
    memory_fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of an accelerator's memory (on a CPU: of the machine's) for an engine's weights and KV cache."""
    max_sequences: Count
    """Sequences that one engine decodes at the same time."""
    max_batched_tokens: Count | None
    """Tokens that one engine computes in one forward pass, at least `max_sequences`; a longer prompt is computed in
    parts. None: as many as the trainer or the engine chooses."""
    eager: bool
    """True disables CUDA graphs: a faster start, slower decoding."""
    prefix_caching: bool
    """Keeps the KV cache of a shared prefix (the turns before)."""
    quantization: EngineDType | None
    """Type of the engine's linear layers, quantised anew at each update; activations are too, except on a card below
    compute capability 8.9. None: `model.dtype`."""
    quantized_model: LocalPath | None
    """The model with FP8 weights (a Hugging Face id, or a directory made by Slime's `tools/convert_hf_to_fp8.py`), in
    whose form Slime's engines get each update. Training, checkpoints and exports stay in `model.dtype`. None: the
    engine quantises by itself."""
    kv_cache_dtype: EngineDType | None
    """Type of the engine's KV cache. None: `model.dtype`."""
    expert_parallel: Size
    """Accelerators of an engine among which whole experts are divided. 1: each expert is split like other layers."""
    speculative: Speculative | None
    """None: one token at a time."""

    def faults(self) -> Iterator[str]:
        if (self.placement is Placement.SEPARATE) != (self.accelerators is not None):
            yield "accelerators must be a number with placement=separate, and null with placement=colocated"
        if self.quantized_model is not None and self.quantization is None:
            yield "quantized_model is for quantization=fp8: set it, or quantized_model=null"
        if self.max_batched_tokens is not None and self.max_batched_tokens < self.max_sequences:
            yield (
                f"max_batched_tokens must be at least max_sequences: a decoding step takes one token of each; got"
                f" {self.max_batched_tokens} and {self.max_sequences}"
            )


class BackendSpec(Section):
    """The trainer and its settings."""

    name: Annotated[BackendName | str, OpenName(Kind.BACKEND, BackendName)]
    pins: dict[str, str]
    """Package -> version that xp's rendering was tested with."""
    commits: dict[EnvVarName, str]
    """Variable of a checkout -> commit that xp's rendering was tested with."""
    runtime: RuntimeSpec
    convert_model: bool
    """Converts the model to the trainer's own checkpoint once, kept for all runs, instead of at every start."""
    attention: Attention
    parallel: Parallel
    engine: EngineSpec
    num_threads: Size
    """CPU threads of the trainer; used where hardware has no accelerator."""
    overrides: OpenKeys
    """Native keys of the trainer for training and evaluation, passed through; one that xp renders itself is an error.
    `{}` on the command line removes those of a recipe."""
