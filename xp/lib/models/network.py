"""Converts a model's config.json to model.architecture, for planning and for Slime's check of the spec."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from xp.lib.nested import flat
from xp.lib.text import as_yaml, word_list

Config = Mapping[str, Any]
"""A config.json, a section of it, or fields of model.architecture."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "model_type": ("model_type",),
    "hidden_size": ("hidden_size",),
    "num_layers": ("num_hidden_layers",),
    "num_heads": ("num_attention_heads",),
    "num_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "intermediate_size": ("intermediate_size",),
    "vocab_size": ("vocab_size",),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps"),
    "tied_embeddings": ("tie_word_embeddings",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
    "expert_intermediate_size": ("moe_intermediate_size",),
    "dense_layers": ("first_k_dense_replace",),
}
"""Field of model.architecture -> keys of config.json, of which the first that exists is used."""
ROUTER: Final[Mapping[str, tuple[str, ...]]] = {
    "bias": ("use_routing_bias",),
    "normalized": ("norm_topk_prob",),
    "scaling": ("routed_scaling_factor",),
    "groups": ("n_group",),
    "groups_per_token": ("topk_group",),
}
"""Field of model.architecture.router -> keys of config.json."""
LATENT: Final[Mapping[str, tuple[str, ...]]] = {
    "q_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "nope_dim": ("qk_nope_head_dim",),
    "rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
}
"""Field of model.architecture.latent_attention -> keys of config.json."""
LINEAR: Final[Mapping[str, tuple[str, ...]]] = {
    "key_heads": ("linear_num_key_heads",),
    "value_heads": ("linear_num_value_heads",),
    "key_dim": ("linear_key_head_dim",),
    "value_dim": ("linear_value_head_dim",),
    "kernel": ("linear_conv_kernel_dim",),
}
"""Field of model.architecture.linear_attention -> keys of config.json."""
TEXT_TWINS: Final[Mapping[str, str]] = {
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "qwen3_vl_text": "qwen3",
}
"""Text network of a model with media -> the family that computes the same of text, where all three positions of a token
are equal."""
SIGMOID: Final = word_list("""
    deepseek_v3 glm4_moe glm4_moe_lite glm_moe_dsa kimi_k2 minimax_m2
""")
"""Families whose routers have sigmoid scores and a bias though config.json may not say so."""
RAW_SCORES: Final = ("olmoe", "qwen2_moe", "qwen3_moe")
"""Families that do not divide by the sum of the chosen scores where config.json does not say."""
ROTATED: Final = {
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "minimax_m2": 0.5,
    "qwen3_5_moe_text": 0.25,
    "qwen3_5_text": 0.25,
    "qwen3_next": 0.25,
}
"""Family -> rotated part of a head where config.json does not say."""
NEEDED: Final = word_list("""
    model_type hidden_size num_layers num_heads intermediate_size vocab_size
""")
"""Fields that every architecture must have."""
BIASED: Final = ("qwen2", "qwen2_moe")
"""Families whose queries, keys and values have biases though config.json does not say so."""
NORMALIZED: Final = word_list("""
    gemma3_text minimax_m2 olmo2 olmo3 qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next
    qwen3_vl_moe_text qwen3_vl_text
""")
"""Families that normalize queries and keys."""
WIDE_NORMS: Final = ("minimax_m2", "olmo2", "olmo3")
"""Families that normalize queries and keys over all heads together."""
POST_NORMS: Final = ("glm4", "glm4v_text")
"""Families that also normalize what attention and feed-forward layers return."""
OUTPUT_GATE: Final = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
"""Families whose attention has a gate of the queries' width."""
SHARED_GATE: Final = ("qwen2_moe", "qwen3_5_moe_text", "qwen3_next")
"""Families with a gate before the shared expert."""
TIED: Final = ("gemma", "gemma2", "gemma3_text", "smollm3")
"""Families whose embeddings are one matrix where config.json does not say."""
RECURRENT: Final = word_list("""
    bailing_hybrid bamba falcon_h1 falcon_mamba glm5_next granitemoehybrid inkling inkling2 jamba
    kimi_linear lfm2 lfm2_moe lfm3 mamba mamba2 minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe
    qwen3_next qwen4_exp recurrent_gemma rwkv xlstm zamba zamba2 zaya
""")
"""Families with recurrent layers: their code in transformers 5.8 and 5.23 keeps a state beside keys and values."""
RECURRENT_KINDS: Final = word_list("""
    conv hybrid hybrid_sliding linear_attention mamba recurrent
""")
"""Kinds of such layers, where config.json lists the kind of each layer (transformers, ALLOWED_LAYER_TYPES)."""
LAYER_LISTS: Final = ("layer_types", "layers_block_type")
"""Keys of that list."""
RECURRENT_KEYS: Final = ("linear_attn", "linear_num_", "mamba_", "ssm_")
"""Beginnings of keys that only configurations of such layers have, for families with code of their own."""
OTHER_STATE: Final = word_list("""
    axk2 bloom deepseek_v32 deepseek_v4 dots3_note_text glm_moe_dsa gpt_neo hy_v4 llama4 llama4_text
""")
"""Other families whose layers keep more than keys and values, or count the tokens before them by the cache."""
HEAD_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of config.json with the number of heads of multi-token prediction (vLLM 0.30, config/speculative.py)."""
WITH_HEADS: Final = word_list("""
    bailing_hybrid deepseek_v3 deepseek_v32 deepseek_v4 dots3_note ernie4_5_moe exaone4_5 exaone_moe
    glm4_moe glm4_moe_lite glm5_next glm_moe_dsa glm_ocr hy_v3 hy_v4 inkling_mm_model inkling_model
    intern_s2_preview interns2_mobius kimi_k3 longcat_flash longcat_flash_ngram mimo mimo_v2
    minimax_m3_vl nemotron_h nemotron_h_puzzle pangu_ultra_moe qwen3_5 qwen3_5_moe qwen3_5_moe_text
    qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text step3p5 step3p7
""")
"""Families whose checkpoints may have such heads, by the same file; config.json has their number, or leaves it out."""
COUNTED: Final = (
    *word_list("""
        deepseek_v3 glm4 glm4_moe glm4_moe_lite kimi_k2 llama minimax_m2 ministral3 mistral mixtral olmo3
        phi3 qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl_moe_text
        qwen3_vl_text smollm3
    """),
    *TEXT_TWINS,
)
"""Families whose parameters `xp.planning.memory` counts exactly; it lacks parts of other families."""
MIXED: Final = ("nemotron_h",)
"""Families whose layers are each one of attention, state, dense feed-forward and experts. Counted as plain decoders
they would have up to three times their parameters, so nothing is estimated from their sizes."""
MEDIA: Final = ("vision_config", "audio_config")
"""Sections of config.json about pictures and sound."""
LLAMA3_BANDS: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN_BANDS: Final = {
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
"""DeepSeek-V3's, which are all that Megatron's flags can say."""


def stated(config: Config) -> dict[str, Any]:
    """The fields that a config.json states."""
    section = text_part(config)
    fields = _read(section, KEYS)
    # The whole model's flag ties; the text section's may be another network's default.
    is_tied = config.get("tie_word_embeddings")
    if is_tied is not None:
        fields["tied_embeddings"] = is_tied
    if fields.get("num_experts"):
        router = _read(section, ROUTER)
        if section.get("topk_method") is not None:
            router["bias"] = section["topk_method"] == "noaux_tc"
        if section.get("scoring_func") is not None:
            router["sigmoid"] = section["scoring_func"] == "sigmoid"
        if router:
            fields["router"] = router
    else:
        fields.pop("num_experts", None)
    shared = section.get("n_shared_experts") or 0
    width = section.get("shared_expert_intermediate_size") or shared * fields.get(
        "expert_intermediate_size", 0
    )
    if width:
        fields["shared_intermediate_size"] = width
    kinds = section.get("mlp_layer_types")
    if isinstance(kinds, list):
        fields["dense_layers"] = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    if section.get("kv_lora_rank"):
        fields["latent_attention"] = {"q_rank": None, **_read(section, LATENT)}
        # The width of the rotated part in some files, and nothing in others.
        fields.pop("head_dim", None)
    if section.get("linear_num_value_heads"):
        kinds = section.get("layer_types") or []
        if "full_attention" in kinds:
            every = kinds.index("full_attention") + 1
        else:
            every = section.get("full_attention_interval", 4)
        fields["linear_attention"] = _read(section, LINEAR) | {"full_every": every}
    rope = section.get("rope_parameters") or section.get("rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    # Newer transformers keep it among the other parameters of the rotary embedding.
    theta = rope.get("rope_theta", section.get("rope_theta"))
    if theta is not None:
        fields["rope_theta"] = float(theta)
    fraction = rope.get("partial_rotary_factor", section.get("partial_rotary_factor"))
    if fraction is None and section.get("rotary_dim") and fields.get("head_dim"):
        fraction = section["rotary_dim"] / fields["head_dim"]
    if fraction is not None:
        fields["rotary_fraction"] = float(fraction)
    if rope or "rope_scaling" in section:
        fields["rope_scaling"] = _scaling(rope)
    return fields | {"recurrent_layers": _is_recurrent(section)}


def _read(config: Config, fields: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        field: next(config[key] for key in keys if config.get(key) is not None)
        for field, keys in fields.items()
        if any(config.get(key) is not None for key in keys)
    }


def network_of(config: Config) -> dict[str, Any] | None:
    """All fields of model.architecture; None where config.json does not say enough."""
    fields = stated(config)
    fields.setdefault("intermediate_size", fields.get("expert_intermediate_size"))
    if any(not fields.get(field) for field in NEEDED):
        return None
    section = text_part(config)
    family = TEXT_TWINS.get(fields["model_type"], fields["model_type"])
    fields.setdefault("num_kv_heads", fields["num_heads"])
    latent = fields.setdefault("latent_attention", None)
    fields.setdefault("linear_attention", None)
    if latent:
        width = latent["nope_dim"] + latent["rope_dim"]
    else:
        width = fields["hidden_size"] // fields["num_heads"]
    fields.setdefault("head_dim", width)
    fields.setdefault("norm_eps", 1e-6)
    fields.setdefault("rope_theta", 10000.0)
    fields.setdefault("rope_scaling", None)
    fields.setdefault("rotary_fraction", ROTATED.get(family, 1.0))
    fields.setdefault("tied_embeddings", config.get("tie_word_embeddings", family in TIED))
    fields["qkv_bias"] = bool(section.get("attention_bias", family in BIASED))
    fields["qk_norm"] = bool(section.get("use_qk_norm", family in NORMALIZED))
    if fields.get("num_experts"):
        # Mixtral and gpt-oss have experts of the width that others give to a dense layer.
        fields.setdefault("expert_intermediate_size", fields["intermediate_size"])
        fields.setdefault("experts_per_token", 1)
        is_sigmoid = family in SIGMOID
        fields["router"] = {
            "sigmoid": is_sigmoid,
            "bias": is_sigmoid,
            "normalized": family not in RAW_SCORES,
            "scaling": 1.0,
            "groups": 1,
            "groups_per_token": 1,
        } | fields.get("router", {})
    else:
        fields |= dict.fromkeys(
            ("num_experts", "experts_per_token", "expert_intermediate_size", "router")
        )
        fields |= {"shared_intermediate_size": None, "dense_layers": 0}
    fields.setdefault("shared_intermediate_size", None)
    fields.setdefault("dense_layers", 0)
    return fields


def mismatches(architecture: Config, config: Config) -> list[str]:
    """One line for each field that differs; fields that config.json lacks are not compared."""
    written = flat(architecture)
    return [
        f"{field} is {as_yaml(written.get(field))}, and config.json has {as_yaml(value)}"
        for field, value in flat(stated(config)).items()
        if not _is_same(value, written.get(field))
    ]


def _is_same(value: Any, other: Any) -> bool:
    """Returns whether two values are equal; a float may have been written through float32."""
    if isinstance(value, float) and isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-7)
    return bool(value == other)


def not_causal(config: Config) -> str | None:
    """Returns why the model does not generate text turn by turn; None if it does."""
    names = config.get("architectures") or []
    if config.get("is_encoder_decoder"):
        return f"{config.get('model_type')} is an encoder and a decoder"
    if names and not any(
        str(name).endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration")) for name in names
    ):
        return f"its config.json names {', '.join(map(str, names))}"
    return None


def may_have_heads(network: Config, config: Config | None) -> bool:
    """Returns whether a checkpoint can have heads of multi-token prediction that an engine knows.

    Args:
        network: fields of model.architecture.
        config: config.json, whose number decides where it has one. None means that it is not known.
    """
    sections = [] if config is None else [config, text_part(config)]
    numbers = [part[key] for part in sections for key in HEAD_COUNTS if key in part]
    if numbers:
        return any(numbers)
    return network.get("model_type") in WITH_HEADS


def has_own_decoding(network: Config) -> bool:
    """Returns whether keys and values are all that the layers keep, as xp's own engine needs.

    Args:
        network: fields of model.architecture, or those that a config.json states.
    """
    return not network.get("recurrent_layers") and network.get("model_type") not in OTHER_STATE


def context_of(config: Config) -> int | None:
    """Longest sequence, in tokens, that the model was trained for."""
    section = text_part(config)
    value = section.get("max_position_embeddings", section.get("n_positions"))
    if isinstance(value, int) and value > 0:
        return value
    return None


def text_part(config: Config) -> Config:
    """The part of config.json about the text network; in a model of pictures and text it is a section."""
    part = config.get("text_config")
    if isinstance(part, dict) and "hidden_size" in part:
        return part
    return config


def _is_recurrent(config: Config) -> bool:
    """Returns whether a layer carries a state from token to token; a list of the layers' kinds decides."""
    kinds = next(
        (config[key] for key in LAYER_LISTS if isinstance(config.get(key), list) and config[key]),
        None,
    )
    if kinds is not None:
        return any(kind in RECURRENT_KINDS for kind in kinds)
    family = str(config.get("model_type")).removesuffix("_text")
    return family in RECURRENT or any(key.startswith(RECURRENT_KEYS) for key in config)


def _scaling(rope: Config) -> str | None:
    """`llama3 x 8.0`, or the name of another scaling of the rotary embedding. None means that there is none."""
    kind = rope.get("rope_type", rope.get("type"))
    factor = rope.get("factor")
    if kind in (None, "default"):
        return None
    bands = {"llama3": LLAMA3_BANDS, "yarn": YARN_BANDS}.get(kind, {})
    # DeepSeek-V3 scales attention by both of its `mscale`; without them, YaRN scales otherwise.
    is_usual = all(
        rope.get(key, None if key.startswith("mscale") else value) == value
        for key, value in bands.items()
    )
    if not bands or not is_usual or factor is None:
        return str(kind)
    fast = float(rope.get("beta_fast", 32))
    if kind == "yarn" and fast != 32:
        return f"{kind} x {float(factor)}, beta_fast {fast}"
    return f"{kind} x {float(factor)}"
