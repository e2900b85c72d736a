"""Whether a spec's architecture is the one of the model's own config.json: a wrong one trains another network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES: Mapping[str, str] = {
    "model_type": "model_type",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tied_embeddings",
    "num_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_intermediate_size",
}
"""Key of config.json -> field of model.architecture."""


def mismatches(architecture: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """One line a field that differs; what config.json does not say is not compared."""
    stated = dict(config)
    # Newer transformers keep it among the other parameters of the rotary embedding.
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        stated["rope_theta"] = rope["rope_theta"]
    return [
        f"{ours} is {architecture.get(ours)}, and config.json has {theirs}={stated[theirs]}"
        for theirs, ours in NAMES.items()
        if stated.get(theirs) is not None and stated[theirs] != architecture.get(ours)
    ]
