"""Two of Slime's own updates of Megatron's own GPT model on the CPU, for tests/trainers/test_slime_megatron.py.

python -m tests.trainers.slime_megatron DIRECTORY

Slime's initialize, set-up of model and optimizer, packing, loss, train_one_step and export run as they are, with
Megatron's local layers. Not real: CUDA (the CPU), NCCL (gloo), TransformerEngine's attention over packed sequences,
which is computed here sequence by sequence, and the bfloat16 of the weights.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tests.trainers.slime_setup import tiny_directory
from tests.trainers.slime_update import batch_of, drawn
from tests.trainers.test_slime_parser import parse
from tests.trainers.test_slime_rehearsal import spec_of

LOCAL = {
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
    "custom_megatron_init_path": None,
    "load": "nothing: the weights are random",
    "lr": 1e-3,
    "lr_warmup_iters": 0,
    "rank": 0,
    "world_size": 1,
    "data_parallel_size": 1,
}
"""What Megatron's local layers want on a CPU, over what xp renders."""


SAID = "said.pt"
"""What Megatron's model says of the tokens, beside each export."""


class _Stream:
    """A CUDA stream or event that has nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...
    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: None


def without_cuda() -> None:
    """Let what Megatron asks of CUDA be done by the CPU, in this process."""
    from megatron.core.tensor_parallel import random
    from slime.utils import accelerator

    accelerator.current_device = accelerator.device = lambda *_: torch.device("cpu")
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *_: None)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cuda, name, lambda *_: 0)
    cuda.mem_get_info = lambda *_: (0, 1)
    cuda.Stream = cuda.Event = _Stream
    cuda.current_stream = cuda.stream = lambda *_: _Stream()
    cuda.manual_seed = torch.manual_seed
    random._get_cuda_rng_state = cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    kind = torch.Tensor.type
    # Megatron clips gradients of CUDA's type alone.
    torch.Tensor.type = lambda self, *to, **more: (  # type: ignore[assignment, method-assign]
        kind(self, *to, **more) if to or more else kind(self).replace("torch.", "torch.cuda.")
    )
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
    for name in ("empty", "zeros", "ones", "tensor", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)

    return replacement


def packed_attention() -> None:
    """Let Megatron's local attention take packed sequences, each by itself."""
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from torch.nn.functional import scaled_dot_product_attention

    def forward(self: Any, query: Any, key: Any, value: Any, *_: Any, packed_seq_params: Any = None, **__: Any) -> Any:
        assert packed_seq_params.qkv_format == "thd"
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        parts = []
        for begin, end in pairwise(bounds):
            q, k, v = (one[begin:end].transpose(0, 1)[None] for one in (query, key, value))
            out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=True)
            parts.append(out[0].transpose(0, 1).reshape(end - begin, -1))
        return torch.cat(parts)

    DotProductAttention.forward = forward


def name_norms() -> None:
    """Let Slime's export know the norms, which TransformerEngine's layers have inside of the next linear layer."""
    from slime.backends.megatron_utils import megatron_to_hf

    convert = megatron_to_hf.convert_qwen2_to_hf

    def renamed(args: Any, name: str, param: Any) -> Any:
        name = name.replace(".input_layernorm.weight", ".self_attention.linear_qkv.layer_norm_weight")
        return convert(args, name.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight"), param)

    megatron_to_hf.convert_qwen2_to_hf = renamed


def log_probs(args: Any, model: Any, data: dict[str, Any]) -> list[torch.Tensor]:
    """Of the responses, by Slime's own forward."""
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.loss import get_log_probs_and_entropy
    from slime.backends.megatron_utils.model import forward_only

    found = forward_only(get_log_probs_and_entropy, args, model, get_data_iterator(data), [1])["log_probs"]
    return [one.float() for one in found]


def export(args: Any, model: Any, data: dict[str, Any], directory: Path) -> None:
    """Slime's own, as a Hugging Face model, with Megatron's log-probabilities of the same weights beside it."""
    from slime.backends.megatron_utils.hf_checkpoint_saver import save_hf_model_to_path

    save_hf_model_to_path(args, directory, model, model_name="qwen3")
    said = {"tokens": data["tokens"], "log_probs": log_probs(args, model, data)}
    torch.save(said, directory / SAID)


def main(root: Path) -> None:
    """Export the model before and after each update, and print what Slime reported of each."""
    torch._dynamo.config.disable = True
    args = parse(spec_of(tiny_directory(root)), "train", root)
    tiny_directory(root)  # the parser's test leaves a configuration without the rest
    for name, value in LOCAL.items():
        setattr(args, name, value)
    # Megatron's dummy tokens are part of its softmax: with untrained weights they take a tenth of the probability.
    args.padded_vocab_size = args.vocab_size
    without_cuda()
    packed_attention()
    name_norms()
    store = torch.distributed.FileStore(str(root / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    import numpy

    numpy.__version__ = "1.26.4"  # Slime's assertion; nothing here differs
    from slime.backends.megatron_utils import initialize
    from slime.backends.megatron_utils.data import get_data_iterator
    from slime.backends.megatron_utils.model import setup_model_and_optimizer, train_one_step
    from slime.utils.distributed_utils import init_gloo_group

    init_gloo_group()
    initialize._build_tokenizer = lambda _: None
    initialize.init(args)
    model, optimizer, scheduler = setup_model_and_optimizer(args, "actor")
    batch = batch_of(drawn())
    data = {**batch, "tokens": batch["unconcat_tokens"], "micro_batch_indices": [[*range(len(batch["rewards"]))]]}
    export(args, model, data, root / "export-0")
    reported = []
    for step in (1, 2):
        data["log_probs"] = log_probs(args, model, data)
        losses, norm = train_one_step(
            args, step, 0, get_data_iterator(data), model, optimizer, scheduler, 1, len(batch["rewards"])
        )
        reported.append({**{name: float(value) for name, value in losses.items()}, "grad_norm": float(norm)})
        export(args, model, data, root / f"export-{step}")
    print("RESULT", json.dumps(reported))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
