"""The section `model.architecture`: Megatron's flags of the network, since Slime builds it from its command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from xp.fields.field import Column, Field, Native
from xp.lib.models.network import SHARED_GATE, TEXT_TWINS
from xp.spec import Architecture, RunSpec
from xp.spec.model import LatentAttention, Router

_PATCHED: Native = {"--post-self-attn-layernorm": True, "--post-mlp-layernorm": True}
"""Flags of Slime's patch of Megatron-LM; others' parser does not know them."""
_UNFUSED: Native = {"--no-rope-fusion": True}
SPARSE: Final = "glm_moe_dsa"
"""GLM-5's family, with sparse attention."""
_GATED: Native = {"--apply-layernorm-1p": True, "--attention-output-gate": True}
_FAMILIES: Mapping[str, Native] = {
    "deepseek_v3": _UNFUSED,
    "glm4": {
        "--spec": ("slime_plugins.models.glm4", "get_glm_spec"),
        **_PATCHED,
        "--rotary-interleaved": True,
        **_UNFUSED,
    },
    "glm4_moe": {},
    "glm4_moe_lite": {"--make-vocab-size-divisible-by": 64, **_UNFUSED},
    SPARSE: {
        "--spec": ("slime_plugins.models.glm5.glm5", "get_glm5_spec"),
        "--make-vocab-size-divisible-by": 16,
        "--enable-experimental": True,
        # Under context parallelism its attention needs a sequence's tokens in their order.
        "--allgather-cp": True,
    },
    "kimi_k2": _UNFUSED,
    "llama": {},
    "minimax_m2": {
        "--spec": ("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"),
        "--model-name": "minimax_m2",
        **_UNFUSED,
    },
    "qwen2": {},
    "qwen3": {},
    "qwen3_5_moe_text": {"--spec": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"), **_GATED},
    "qwen3_5_text": {"--spec": ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec"), **_GATED},
    "qwen3_moe": {},
    "qwen3_next": {"--spec": ("slime_plugins.models.qwen3_next", "get_qwen3_next_spec"), **_GATED},
}
FAMILIES: Mapping[str, Native] = {
    **_FAMILIES,
    **{text: _FAMILIES[family] for text, family in TEXT_TWINS.items()},
}
"""Family whose flags are written here -> those that its config.json does not say; the pinned version loads the weights
from Hugging Face directories (slime/backends/megatron_utils/hf_to_megatron/__init__.py `_LOADERS`). The text network
of a model with media is trained as its twin (worker/text_network.py)."""
LOADED_ONLY: Final = ("deepseek_v32", "mimo", "qwen2_moe")
"""Families that the pinned version loads, whose flags are not written here."""
VISION_PROVIDER: Native = {
    "--spec": ("slime_plugins.models.qwen3_5_vl", "get_qwen3_5_vl_model_provider")
}
"""In place of a family's, the network with its part for pictures."""
WITH_PICTURES: Mapping[str, Native] = {
    "qwen3_5_moe_text": VISION_PROVIDER,
    "qwen3_5_text": VISION_PROVIDER,
}
"""Family of Slime's one plug-in that takes pictures -> its flags with model.images."""
OF_FAMILIES = dict.fromkeys(
    name for flags in FAMILIES.values() for name in flags if name not in (*_PATCHED, *_UNFUSED)
)
LLAMA3 = "llama3 x 8.0"
"""The only scaling of Slime's network without latent attention: its model_provider.py passes rope_scaling on, but never
a factor."""
YARN = "yarn x "


SHAPE: Mapping[str, str | Callable[[Architecture], Native]] = {
    "model_type": lambda a: {
        "--swiglu": True,
        "--normalization": "RMSNorm",
        "--position-embedding-type": "rope",
        "--disable-bias-linear": True,
        **OF_FAMILIES,
        **FAMILIES.get(a.model_type, {}),
    },
    "hidden_size": "--hidden-size",
    "num_layers": "--num-layers",
    "num_heads": "--num-attention-heads",
    "num_kv_heads": lambda a: {
        "--group-query-attention": a.num_kv_heads != a.num_heads,
        "--num-query-groups": a.num_kv_heads,
    },
    "head_dim": "--kv-channels",
    "intermediate_size": "--ffn-hidden-size",
    "vocab_size": "--vocab-size",
    # Megatron parses a whole number.
    "rope_theta": lambda a: {"--rotary-base": int(a.rope_theta)},
    "rotary_fraction": "--rotary-percent",
    "rope_scaling": lambda a: {
        "--use-rope-scaling": a.rope_scaling == LLAMA3,
        **_if(
            (a.rope_scaling or "").startswith(YARN),
            {
                "--rotary-scaling-factor": (a.rope_scaling or "")
                .removeprefix(YARN)
                .partition(",")[0],
                # Of DeepSeek-V3; the band `beta_fast`, which has no flag, is set by worker/models.py `set_yarn`.
                "--mscale": 1.0,
                "--mscale-all-dim": 1.0,
            },
        ),
    },
    "norm_eps": "--norm-epsilon",
    "tied_embeddings": lambda a: {"--untie-embeddings-and-output-weights": not a.tied_embeddings},
    "qkv_bias": "--add-qkv-bias",
    # With latent attention, the norms are those of the latents.
    "qk_norm": lambda a: {"--qk-layernorm": a.qk_norm or a.latent_attention is not None},
    "latent_attention": lambda a: _latent(a.latent_attention),
    # Slime's own layers read their sizes from config.json.
    "recurrent_layers": lambda _: {},
    "linear_attention": lambda _: {},
    "num_experts": lambda a: _if(
        a.num_experts is not None,
        {
            "--num-experts": a.num_experts,
            "--moe-router-dtype": "fp32",
            "--moe-token-dispatcher-type": "alltoall",
            "--moe-token-drop-policy": "probs",
            "--moe-grouped-gemm": True,
            "--moe-permute-fusion": True,
            # A loss in addition to the policy's would be another experiment.
            "--moe-aux-loss-coeff": 0.0,
        },
    ),
    "experts_per_token": "--moe-router-topk",
    "expert_intermediate_size": "--moe-ffn-hidden-size",
    "shared_intermediate_size": lambda a: {
        "--moe-shared-expert-intermediate-size": a.shared_intermediate_size,
        "--moe-shared-expert-gate": a.shared_intermediate_size is not None
        and a.model_type in SHARED_GATE,
    },
    "dense_layers": lambda a: {
        "--moe-layer-freq": None if a.num_experts is None else _layers_with_experts(a)
    },
    "router": lambda a: _router(a.router),
}
"""Field of model.architecture -> the flag that gets it, or its flags with their values. Sources: scripts/models/*.sh of
the pinned version, and Megatron's megatron/training/arguments.py for the names."""


def network_flags(field: str, shape: Architecture) -> Native:
    """The flags of a field of the network."""
    flags = SHAPE[field]
    if isinstance(flags, str):
        return {flags: getattr(shape, field)}
    return flags(shape)


def _if(is_so: bool, flags: Native) -> Native:
    return flags if is_so else dict.fromkeys(flags)


def _layers_with_experts(shape: Architecture) -> str | int:
    dense = shape.dense_layers
    if dense:
        return f"[0]*{dense}+[1]*{shape.num_layers - dense}"
    return 1


def _latent(latent: LatentAttention | None) -> Native:
    if latent is None:
        return {}
    return {
        "--multi-latent-attention": True,
        "--q-lora-rank": latent.q_rank,
        "--kv-lora-rank": latent.kv_rank,
        "--qk-head-dim": latent.nope_dim,
        "--qk-pos-emb-head-dim": latent.rope_dim,
        "--v-head-dim": latent.value_dim,
    }


def _router(router: Router | None) -> Native:
    if router is None:
        return {}
    has_groups = router.groups > 1
    return {
        "--moe-router-score-function": "sigmoid" if router.sigmoid else "softmax",
        # Without it, the softmax is over the chosen experts alone, which divides by their sum.
        "--moe-router-pre-softmax": router.sigmoid or not router.normalized,
        "--moe-router-enable-expert-bias": router.bias,
        # The bias stays as it is, on this backend as on the others.
        "--moe-router-bias-update-rate": 0.0 if router.bias else None,
        "--moe-router-topk-scaling-factor": None if router.scaling == 1.0 else router.scaling,
        "--moe-router-num-groups": router.groups if has_groups else None,
        "--moe-router-group-topk": router.groups_per_token if has_groups else None,
    }


def _flags(name: str, spec: RunSpec) -> Native:
    shape = spec.model.architecture
    if shape is None:
        return {}
    flags = network_flags(name, shape)
    if name == "model_type" and spec.model.images is not None:
        return {**flags, **WITH_PICTURES.get(shape.model_type, {})}
    return flags


ARCHITECTURE = tuple(
    Field(f"model.architecture.{name}", slime=Column(partial(_flags, name))) for name in SHAPE
)
