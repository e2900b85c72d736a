"""Converts a model's config.json to model.architecture, for planning and for Slime's check of the spec."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from xp.lib.nested import flat
from xp.lib.text import as_yaml, word_list

Config = Mapping[str, Any]
"""A config.json, a section of it, or fields of model.architecture."""
_TABLES: Final = tomllib.loads(Path(__file__).with_name("networks.toml").read_text("utf-8"))
KEYS: Final[Mapping[str, Sequence[str]]] = _TABLES["keys"]
ROUTER: Final[Mapping[str, Sequence[str]]] = _TABLES["router"]
LATENT: Final[Mapping[str, Sequence[str]]] = _TABLES["latent"]
LINEAR: Final[Mapping[str, Sequence[str]]] = _TABLES["linear"]
TEXT_TWINS: Final[Mapping[str, str]] = _TABLES["text_twins"]
ROTATED: Final[Mapping[str, float]] = _TABLES["rotated"]


def _families_with(trait: str) -> tuple[str, ...]:
    """The families of which a line of networks.toml is true."""
    return tuple(family for family, traits in _TABLES["families"].items() if trait in traits)


SIGMOID: Final = _families_with("sigmoid")
RAW_SCORES: Final = _families_with("raw_scores")
BIASED: Final = _families_with("biased")
NORMALIZED: Final = _families_with("normalized")
WIDE_NORMS: Final = _families_with("wide_norms")
POST_NORMS: Final = _families_with("post_norms")
OUTPUT_GATE: Final = _families_with("output_gate")
SHARED_GATE: Final = _families_with("shared_gate")
TIED: Final = _families_with("tied")
RECURRENT: Final = _families_with("recurrent")
OTHER_STATE: Final = _families_with("other_state")
WITH_HEADS: Final = _families_with("heads")
COUNTED: Final = _families_with("counted")
MIXED: Final = _families_with("mixed")
NEEDED: Final = word_list("""
    model_type hidden_size num_layers num_heads intermediate_size vocab_size
""")
"""Fields that every architecture must have."""
RECURRENT_KINDS: Final = word_list("""
    conv hybrid hybrid_sliding linear_attention mamba recurrent
""")
"""Kinds of recurrent layers, where config.json lists the kind of each layer (transformers, ALLOWED_LAYER_TYPES)."""
LAYER_LISTS: Final = ("layer_types", "layers_block_type")
"""Keys of that list."""
RECURRENT_KEYS: Final = ("linear_attn", "linear_num_", "mamba_", "ssm_")
"""Beginnings of keys that only configurations of such layers have, for families with code of their own."""
HEAD_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Keys of config.json with the number of heads of multi-token prediction (vLLM 0.30, config/speculative.py)."""
MEDIA: Final = ("vision_config", "audio_config")
"""Sections of config.json about pictures and sound."""


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


def _read(config: Config, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
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
    bands = _TABLES["bands"].get(kind, {})
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
