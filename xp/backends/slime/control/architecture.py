"""model.architecture -> Megatron's flags, since Slime builds the network from its command line, not from
config.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xp.backends.slime.control.flags import Flags, switch, value
from xp.planning.rows import Refusal
from xp.spec import Architecture, RunSpec

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Families whose flags are written here; the pinned version loads their weights from Hugging Face directories
(slime/backends/megatron_utils/hf_to_megatron/__init__.py `_LOADERS`)."""
LLAMA3 = "llama3 x 8.0"
"""The only scaling of Slime's network: its model_provider.py passes rope_scaling on, but never a factor."""


SHAPE: Mapping[str, Callable[[Architecture], Flags]] = {
    # The same for all these families.
    "model_type": lambda _: {
        "--swiglu": (),
        "--normalization": ("RMSNorm",),
        "--position-embedding-type": ("rope",),
        "--rotary-percent": value(1.0),
        "--disable-bias-linear": (),
    },
    "hidden_size": lambda a: {"--hidden-size": value(a.hidden_size)},
    "num_layers": lambda a: {"--num-layers": value(a.num_layers)},
    "num_heads": lambda a: {"--num-attention-heads": value(a.num_heads)},
    "num_kv_heads": lambda a: {
        "--group-query-attention": switch(a.num_kv_heads != a.num_heads),
        "--num-query-groups": value(a.num_kv_heads),
    },
    "head_dim": lambda a: {"--kv-channels": value(a.head_dim)},
    "intermediate_size": lambda a: {"--ffn-hidden-size": value(a.intermediate_size)},
    "vocab_size": lambda a: {"--vocab-size": value(a.vocab_size)},
    # Megatron parses a whole number.
    "rope_theta": lambda a: {"--rotary-base": value(int(a.rope_theta))},
    "rope_scaling": lambda a: {"--use-rope-scaling": switch(a.rope_scaling == LLAMA3)},
    "norm_eps": lambda a: {"--norm-epsilon": value(a.norm_eps)},
    "tied_embeddings": lambda a: {"--untie-embeddings-and-output-weights": switch(not a.tied_embeddings)},
    "qkv_bias": lambda a: {"--add-qkv-bias": switch(a.qkv_bias)},
    "qk_norm": lambda a: {"--qk-layernorm": switch(a.qk_norm)},
    # None of `FAMILIES` has such layers.
    "recurrent_layers": lambda _: {},
    "num_experts": lambda a: _if_sparse(
        a,
        {
            "--num-experts": value(a.num_experts),
            # Every layer has experts.
            "--moe-layer-freq": value(1),
            "--moe-router-score-function": ("softmax",),
            "--moe-router-dtype": ("fp32",),
            "--moe-token-dispatcher-type": ("alltoall",),
            "--moe-token-drop-policy": ("probs",),
            "--moe-grouped-gemm": (),
            "--moe-permute-fusion": (),
            # A loss in addition to the policy's would be another experiment.
            "--moe-aux-loss-coeff": value(0.0),
        },
    ),
    "experts_per_token": lambda a: _if_sparse(a, {"--moe-router-topk": value(a.experts_per_token)}),
    "expert_intermediate_size": lambda a: _if_sparse(a, {"--moe-ffn-hidden-size": value(a.expert_intermediate_size)}),
}
"""Field of model.architecture -> flags. Sources: scripts/models/*.sh of the pinned version, and Megatron's
megatron/training/arguments.py for the names."""


def architecture_flags(shape: Architecture) -> Flags:
    """All flags of the network."""
    return {name: values for field in SHAPE.values() for name, values in field(shape).items()}


def _if_sparse(shape: Architecture, flags: Flags) -> Flags:
    return flags if shape.num_experts is not None else dict.fromkeys(flags)


def family_refusal(spec: RunSpec) -> Refusal | None:
    """Refusal of a network that xp cannot write for Megatron, after which other faults do not matter; else None."""
    shape, model = spec.model.architecture, spec.model
    if shape is None:
        return Refusal(
            "model.architecture",
            f"Slime builds the network from it, but the config.json of {model.path} is not on this machine: download"
            " it and set model.path to the directory, or write it into the model's file",
        )
    if shape.model_type not in FAMILIES:
        return Refusal(
            "model.architecture.model_type",
            f"xp writes Megatron's flags for {', '.join(FAMILIES)}, not for {shape.model_type};"
            " use backend=skyrl or trl",
        )
    return None


def architecture_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusals of unsupported properties in a network of a supported family."""
    shape = spec.model.architecture
    assert shape is not None  # family_refusal: refused before
    if not shape.rope_theta.is_integer():
        yield Refusal("model.architecture.rope_theta", "Megatron needs a whole number; use backend=skyrl or trl")
    if shape.rope_scaling not in (None, LLAMA3):
        yield Refusal(
            "model.architecture.rope_scaling",
            f"Slime's network supports only {LLAMA3} and would train {shape.rope_scaling} as another network;"
            " use backend=skyrl or trl",
        )
