"""Megatron-LM's own model on the CPU: its local layers, and stubs for what it asks of CUDA.

Not real: CUDA (the CPU), NCCL (gloo), TransformerEngine's attention over packed sequences, which is computed here
sequence by sequence, and the bfloat16 of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

LOCAL: dict[str, Any] = {
    "transformer_impl": "local",
    "use_cpu_initialization": True,
    "gradient_accumulation_fusion": False,
    "no_persist_layer_norm": True,
    "bf16": False,
    "params_dtype": torch.float32,
    "bias_swiglu_fusion": False,
    "apply_rope_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "recompute_granularity": None,
    "enable_gloo_process_groups": True,
    "offload_train": False,
    "rank": 0,
    "world_size": 1,
    "data_parallel_size": 1,
}
"""Arguments that Megatron's local layers need on a CPU, over what xp renders."""


class _Stream:
    """Replacement of a CUDA stream or event, which never waits."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


def without_cuda() -> None:
    """Replaces the parts of CUDA that Megatron uses by the CPU, in this process."""
    from megatron.core.tensor_parallel import random
    from slime.utils import accelerator

    accelerator.current_device = accelerator.device = lambda *_: torch.device("cpu")
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    for name in (
        "set_device",
        "synchronize",
        "empty_cache",
        "ipc_collect",
        "reset_peak_memory_stats",
    ):
        setattr(cuda, name, lambda *_: None)
    for name in (
        "memory_allocated",
        "memory_reserved",
        "max_memory_allocated",
        "max_memory_reserved",
    ):
        setattr(cuda, name, lambda *_: 0)
    cuda.mem_get_info = lambda *_: (0, 1)
    cuda.Stream = cuda.Event = _Stream
    cuda.current_stream = cuda.stream = lambda *_: _Stream()
    cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(
        state
    )
    kind = torch.Tensor.type
    # Megatron clips only gradients of CUDA's type.
    torch.Tensor.type = lambda self, *to, **more: (
        kind(self, *to, **more) if to or more else kind(self).replace("torch.", "torch.cuda.")
    )
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self
    for name in ("empty", "empty_like", "zeros", "ones", "tensor", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return replacement


def packed_attention() -> None:
    """Makes Megatron's local attention process packed sequences one by one."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from torch.nn.functional import scaled_dot_product_attention

    def forward(
        self: Any,
        query: Any,
        key: Any,
        value: Any,
        *_: Any,
        packed_seq_params: Any = None,
        **__: Any,
    ) -> Any:
        assert packed_seq_params.qkv_format == "thd"
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        parts = []
        for begin, end in pairwise(bounds):
            q, k, v = (one[begin:end].transpose(0, 1)[None] for one in (query, key, value))
            out = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=True
            )
            parts.append(out[0].transpose(0, 1).reshape(end - begin, -1))
        return torch.cat(parts)

    DotProductAttention.forward = forward


def name_norms() -> None:
    """Adds the norms to Slime's export and loader; in TransformerEngine they are part of the next linear layer."""
    from slime.backends.megatron_utils import hf_to_megatron, megatron_to_hf

    convert = megatron_to_hf.convert_qwen2_to_hf
    load = hf_to_megatron._LOADERS["qwen3"]
    megatron_to_hf.convert_qwen2_to_hf = lambda args, name, param: convert(
        args, _theirs(name), param
    )
    hf_to_megatron._LOADERS["qwen3"] = lambda name, *more: load(_theirs(name), *more)


def name_head() -> None:
    """Register the bias of a critic's head, initially zero, with Slime's loader of Hugging Face directories.

    In the place of the converted checkpoint that a critic starts from, whose head Slime draws anew just so.
    """
    from slime.backends.megatron_utils import hf_to_megatron

    load = hf_to_megatron._LOADERS["qwen3"]
    hf_to_megatron._LOADERS["qwen3"] = lambda name, *more: (
        torch.zeros(1) if name.endswith("output_layer.bias") else load(name, *more)
    )


def _theirs(name: str) -> str:
    name = name.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
    return name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")


@contextmanager
def double_precision() -> Iterator[None]:
    """Context manager: float32 means float64 in this process, to measure differences without rounding."""
    plain: Any = torch
    single = torch.float32
    to_single = torch.Tensor.float
    kind = torch.Tensor.type
    plain.float32 = plain.float = torch.float64
    plain.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    # Megatron clips only gradients of one type.
    plain.Tensor.type = lambda self, *to, **more: (
        kind(self, *to, **more) if to or more else kind(self).replace("Double", "Float")
    )
    try:
        yield
    finally:
        plain.float32 = plain.float = single
        plain.Tensor.float = to_single
        plain.Tensor.type = kind
        torch.set_default_dtype(single)
