"""Tiny models with random weights of transformers' own list of causal language models."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

VOCABULARY: Final = 160
SIZES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "out_hidden_size"), 32),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp", "n_inner"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 4),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "linear_num_value_heads"), 4
    ),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads"), 2),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 40),
    **dict.fromkeys(
        ("head_dim", "v_head_dim", "kv_lora_rank", "linear_key_head_dim", "linear_value_head_dim"),
        8,
    ),
    **dict.fromkeys(
        ("state_size", "ssm_state_size", "mamba_d_state", "hidden_size_per_layer_input"), 8
    ),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "image_size"),
        16,
    ),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "qk_rope_head_dim", "qk_nope_head_dim"), 4
    ),
    **dict.fromkeys(
        ("n_shared_experts", "n_group", "topk_group", "mamba_n_groups", "n_groups", "bos_token_id"),
        1,
    ),
    # The conversations of the tests: longer than a window or a chunk, but not than the longest sequence.
    **dict.fromkeys(
        ("sliding_window", "attention_chunk_size", "attention_window_size", "window_size"), 20
    ),
    "pad_token_id": 0,
    "eos_token_id": 2,
    "patch_size": 8,
}
"""Key of a configuration -> a small value."""
INDEXED: Final = {"index_topk": 12, "index_head_dim": 8, "index_n_heads": 16}
"""An indexer that keeps fewer tokens than an episode has; with few heads, tokens have equal scores."""
OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "cohere2": {"logit_scale": 0.25},
    "deepseek_v32": INDEXED,
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma2": {"final_logit_softcapping": 2.0, "attn_logit_softcapping": 3.0},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_text": {
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "glm_moe_dsa": INDEXED,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 4},
    "granite": {"logits_scaling": 8.0},
    "granitemoe": {"logits_scaling": 8.0},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_text": {"floor_scale": 4},
    "mamba2": {"num_heads": 4, "head_dim": 16},
}
"""Family -> further values."""


def tiny_model(family: str, **given: Any) -> Any:
    """A model in evaluation mode, with weights that make each part of the network matter."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    config = _tiny_config(CONFIG_MAPPING[family], {**OWN.get(family, {}), **given})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


def _tiny_config(kind: Any, own: Mapping[str, Any]) -> Any:
    synonyms = getattr(kind, "attribute_map", {})
    names = {*synonyms, *(name for one in kind.__mro__ for name in inspect.get_annotations(one))}
    sizes = {
        name: value
        for name, value in SIZES.items()
        if name in names and synonyms.get(name, "") not in SIZES
    }
    if "kv_lora_rank" in names:
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    parts = {
        name: _tiny_config(part, {})
        for name, part in (getattr(kind, "sub_configs", None) or {}).items()
        if isinstance(part, type) and part.__name__ != "AutoConfig"
    }
    return kind(**{**sizes, **parts, **own})
