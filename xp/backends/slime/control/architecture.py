"""model.architecture -> Megatron's flags, since Slime builds the network from its command line, not from
config.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from xp.backends.slime.control.flags import Flags, switch, value
from xp.models.network import SHARED_GATE
from xp.planning.rows import Refusal
from xp.spec import Architecture, RunSpec
from xp.spec.model import LatentAttention, Router

_PATCHED: Flags = {"--post-self-attn-layernorm": (), "--post-mlp-layernorm": ()}
"""Flags of Slime's patch of Megatron-LM; others' parser does not know them."""
_UNFUSED: Flags = {"--no-rope-fusion": ()}
_GATED: Flags = {"--apply-layernorm-1p": (), "--attention-output-gate": ()}
FAMILIES: Mapping[str, Flags] = {
    "deepseek_v3": _UNFUSED,
    "glm4": {
        "--spec": ("slime_plugins.models.glm4", "get_glm_spec"),
        **_PATCHED,
        "--rotary-interleaved": (),
        **_UNFUSED,
    },
    "glm4_moe": {},
    "glm4_moe_lite": {"--make-vocab-size-divisible-by": value(64), **_UNFUSED},
    "kimi_k2": _UNFUSED,
    "llama": {},
    "minimax_m2": {
        "--spec": ("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"),
        "--model-name": ("minimax_m2",),
        **_UNFUSED,
    },
    "qwen2": {},
    "qwen3": {},
    "qwen3_5_moe_text": {"--spec": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"), **_GATED},
    "qwen3_5_text": {"--spec": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"), **_GATED},
    "qwen3_moe": {},
    "qwen3_next": {"--spec": ("slime_plugins.models.qwen3_next", "get_qwen3_next_spec"), **_GATED},
}
"""Family whose flags are written here -> those that its config.json does not say; the pinned version loads the weights
from Hugging Face directories (slime/backends/megatron_utils/hf_to_megatron/__init__.py `_LOADERS`)."""
OF_FAMILIES = dict.fromkeys(name for flags in FAMILIES.values() for name in flags if name not in _PATCHED | _UNFUSED)
LLAMA3 = "llama3 x 8.0"
"""The only scaling of Slime's network without latent attention: its model_provider.py passes rope_scaling on, but never
a factor."""
YARN = "yarn x "


SHAPE: Mapping[str, Callable[[Architecture], Flags]] = {
    "model_type": lambda a: {
        "--swiglu": (),
        "--normalization": ("RMSNorm",),
        "--position-embedding-type": ("rope",),
        "--disable-bias-linear": (),
        **OF_FAMILIES,
        **FAMILIES.get(a.model_type, {}),
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
    "rotary_fraction": lambda a: {"--rotary-percent": value(a.rotary_fraction)},
    "rope_scaling": lambda a: {
        "--use-rope-scaling": switch(a.rope_scaling == LLAMA3),
        **_if(
            (a.rope_scaling or "").startswith(YARN),
            {
                "--rotary-scaling-factor": value(*(a.rope_scaling or "").removeprefix(YARN).split(",")[:1]),
                # Of DeepSeek-V3; the band `beta_fast`, which has no flag, is set by worker/models.py `set_yarn`.
                "--mscale": value(1.0),
                "--mscale-all-dim": value(1.0),
            },
        ),
    },
    "norm_eps": lambda a: {"--norm-epsilon": value(a.norm_eps)},
    "tied_embeddings": lambda a: {"--untie-embeddings-and-output-weights": switch(not a.tied_embeddings)},
    "qkv_bias": lambda a: {"--add-qkv-bias": switch(a.qkv_bias)},
    # With latent attention, the norms are those of the latents.
    "qk_norm": lambda a: {"--qk-layernorm": switch(a.qk_norm or a.latent_attention is not None)},
    "latent_attention": lambda a: _latent(a.latent_attention),
    # Slime's own layers read their sizes from config.json.
    "recurrent_layers": lambda _: {},
    "linear_attention": lambda _: {},
    "num_experts": lambda a: _if(
        a.num_experts is not None,
        {
            "--num-experts": value(a.num_experts),
            "--moe-router-dtype": ("fp32",),
            "--moe-token-dispatcher-type": ("alltoall",),
            "--moe-token-drop-policy": ("probs",),
            "--moe-grouped-gemm": (),
            "--moe-permute-fusion": (),
            # A loss in addition to the policy's would be another experiment.
            "--moe-aux-loss-coeff": value(0.0),
        },
    ),
    "experts_per_token": lambda a: _if(a.num_experts is not None, {"--moe-router-topk": value(a.experts_per_token)}),
    "expert_intermediate_size": lambda a: _if(
        a.num_experts is not None, {"--moe-ffn-hidden-size": value(a.expert_intermediate_size)}
    ),
    "shared_intermediate_size": lambda a: _if(
        a.shared_intermediate_size is not None,
        {
            "--moe-shared-expert-intermediate-size": value(a.shared_intermediate_size),
            "--moe-shared-expert-gate": switch(a.model_type in SHARED_GATE),
        },
    ),
    "dense_layers": lambda a: _if(
        a.num_experts is not None,
        {
            "--moe-layer-freq": value(
                f"[0]*{a.dense_layers}+[1]*{a.num_layers - a.dense_layers}" if a.dense_layers else 1
            )
        },
    ),
    "router": lambda a: _router(a.router),
}
"""Field of model.architecture -> flags. Sources: scripts/models/*.sh of the pinned version, and Megatron's
megatron/training/arguments.py for the names."""


def architecture_flags(shape: Architecture) -> Flags:
    """All flags of the network."""
    return {name: values for field in SHAPE.values() for name, values in field(shape).items()}


def _if(is_so: bool, flags: Flags) -> Flags:
    return flags if is_so else dict.fromkeys(flags)


def _latent(latent: LatentAttention | None) -> Flags:
    if latent is None:
        return {}
    return {
        "--multi-latent-attention": (),
        "--q-lora-rank": None if latent.q_rank is None else value(latent.q_rank),
        "--kv-lora-rank": value(latent.kv_rank),
        "--qk-head-dim": value(latent.nope_dim),
        "--qk-pos-emb-head-dim": value(latent.rope_dim),
        "--v-head-dim": value(latent.value_dim),
    }


def _router(router: Router | None) -> Flags:
    if router is None:
        return {}
    has_groups = router.groups > 1
    return {
        "--moe-router-score-function": ("sigmoid" if router.sigmoid else "softmax",),
        # Without it, the softmax is over the chosen experts alone, which divides by their sum.
        "--moe-router-pre-softmax": switch(router.sigmoid or not router.normalized),
        "--moe-router-enable-expert-bias": switch(router.bias),
        # The bias stays as it is, on this backend as on the others.
        "--moe-router-bias-update-rate": value(0.0) if router.bias else None,
        "--moe-router-topk-scaling-factor": None if router.scaling == 1.0 else value(router.scaling),
        "--moe-router-num-groups": value(router.groups) if has_groups else None,
        "--moe-router-group-topk": value(router.groups_per_token) if has_groups else None,
    }


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
    has_yarn = shape.latent_attention is not None and (shape.rope_scaling or "").startswith(YARN)
    if shape.rope_scaling not in (None, LLAMA3) and not has_yarn:
        supported = LLAMA3 if shape.latent_attention is None else f"{YARN}FACTOR"
        yield Refusal(
            "model.architecture.rope_scaling",
            f"Slime's network supports only {supported} and would train {shape.rope_scaling} as another network;"
            " use backend=skyrl or trl",
        )
    router = shape.router
    if router is not None and (router.sigmoid > router.normalized or router.bias > router.sigmoid):
        yield Refusal(
            "model.architecture.router",
            "Megatron divides sigmoid scores by their sum and has a bias for them only, and would train another"
            " network; use backend=skyrl or trl",
        )
    if router is not None and router.groups > 1 and (shape.experts_per_token or 0) // router.groups_per_token != 2:
        yield Refusal(
            "model.architecture.router",
            "Megatron scores a group by its best experts_per_token / groups_per_token experts, and the model's own code"
            " by its best two, so that it would train another network; use backend=skyrl or trl",
        )
