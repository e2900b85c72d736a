"""The flags of each family are those of Slime's own scripts/models/*.sh at the pinned commit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.slime_setup import needs_slime
from xp.backends.slime.control.architecture import architecture_flags
from xp.fields.architecture import FAMILIES
from xp.lib.models.network import TEXT_TWINS, network_of
from xp.spec import Architecture

pytestmark = needs_slime
SCRIPTS = sorted(Path(os.environ.get("SLIME_PATH", "/nowhere"), "scripts/models").glob("*.sh"))
FAMILY = {
    "deepseek-v3": "deepseek_v3",
    "glm4-": "glm4",
    "glm4.5": "glm4_moe",
    "glm4.7": "glm4_moe_lite",
    "glm5": "glm_moe_dsa",
    "kimi-k2": "kimi_k2",
    "llama3.1": "llama",
    "minimax-m2": "minimax_m2",
    "moonlight": "deepseek_v3",
    "qwen2.5": "qwen2",
    "qwen3-next": "qwen3_next",
    "qwen3.5-35B": "qwen3_5_moe_text",
    "qwen3.5": "qwen3_5_text",
    "qwen3-30B": "qwen3_moe",
    "qwen3-235B": "qwen3_moe",
    "qwen3-": "qwen3",
}
"""Beginning of a script's name -> family."""
NOT_WRITTEN = ("llama3.2", "mimo", "qwen3.5-35B-A3B-vl")
"""Llama 3's scaling with another factor, a layer of multi-token prediction, and pictures, whose network is in
tests/trainers/test_slime_pictures.py."""
KEYS = {
    "--ffn-hidden-size": "intermediate_size",
    "--hidden-size": "hidden_size",
    "--kv-channels": "head_dim",
    "--kv-lora-rank": "kv_lora_rank",
    "--moe-ffn-hidden-size": "moe_intermediate_size",
    "--moe-router-group-topk": "topk_group",
    "--moe-router-num-groups": "n_group",
    "--moe-router-topk": "num_experts_per_tok",
    "--moe-router-topk-scaling-factor": "routed_scaling_factor",
    "--norm-epsilon": "rms_norm_eps",
    "--num-attention-heads": "num_attention_heads",
    "--num-layers": "num_hidden_layers",
    "--num-query-groups": "num_key_value_heads",
    "--q-lora-rank": "q_lora_rank",
    "--qk-head-dim": "qk_nope_head_dim",
    "--qk-pos-emb-head-dim": "qk_rope_head_dim",
    "--rotary-base": "rope_theta",
    "--v-head-dim": "v_head_dim",
    "--vocab-size": "vocab_size",
}
"""Flag -> key of config.json."""
DEEPSEEK = ("deepseek_v3", "glm_moe_dsa", "kimi_k2")
"""Families whose config.json has DeepSeek's keys."""
LINEAR = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}
DEFAULTS = {
    "--moe-router-bias-update-rate": ("0.001",),
    "--moe-router-topk-scaling-factor": ("1.0",),
    "--norm-epsilon": ("1e-05",),
    "--rotary-percent": ("1.0",),
    "--rotary-scaling-factor": ("1.0",),
}
"""Megatron's own, which either side may leave out."""
WITHOUT_EFFECT = {
    "--attention-softmax-in-fp32": "xp sets it for all models",
    "--max-position-embeddings": "of learned positions alone",
    "--moe-router-load-balancing-type": "its loss has the coefficient 0",
    "--no-masked-softmax-fusion": "FlashAttention has no such softmax",
    "--no-position-embedding": "of learned positions alone",
    "--seq-length": "sequences are packed",
    "--use-gated-attention": "no parser knows it",
    "--use-rotary-position-embeddings": "the same as --position-embedding-type rope",
    "--position-embedding-type": "the same",
    # What xp always writes, and a script leaves at the default.
    "--moe-token-dispatcher-type": "alltoall, which Slime sets in any case",
    "--moe-token-drop-policy": "the default",
}
LATENT = {
    "--add-qkv-bias": "MLASelfAttention has none",
    "--kv-channels": "its heads have widths of their own",
    "--num-query-groups": "every head has keys and values",
}
"""Flags without effect under latent attention."""


def flags_of(script: Path) -> dict[str, tuple[str, ...]]:
    text = f'source {script} && printf "%s\\n" "${{MODEL_ARGS[@]}}"'
    words = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    flags: dict[str, tuple[str, ...]] = {}
    for word in words:
        if word.startswith("--"):
            name = word
            flags[name] = ()
        else:
            flags[name] += (word,)
    return flags


def config_of(family: str, flags: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """A config.json with the script's sizes, and what this family's says beside them."""
    config: dict[str, Any] = {
        KEYS[flag]: float(values[0]) for flag, values in flags.items() if flag in KEYS
    }
    config = {
        key: int(number) if number == int(number) else number for key, number in config.items()
    }
    config |= {
        "model_type": family,
        "tie_word_embeddings": "--untie-embeddings-and-output-weights" not in flags,
    }
    config.setdefault("rms_norm_eps", 1e-5)
    if family in ("glm4", "glm4_moe", "qwen3", "qwen3_moe"):
        config["attention_bias"] = "--add-qkv-bias" in flags
    if family == "glm4_moe":
        config["use_qk_norm"] = "--qk-layernorm" in flags
    if "--num-experts" in flags:
        names = {
            "minimax_m2": "num_local_experts",
            **dict.fromkeys(DEEPSEEK, "n_routed_experts"),
        }
        config[names.get(family, "num_experts")] = int(flags["--num-experts"][0])
        config["norm_topk_prob"] = True
        frequency = eval(flags.get("--moe-layer-freq", ("1",))[0])
        config["first_k_dense_replace"] = frequency.count(0) if isinstance(frequency, list) else 0
    shared = flags.get("--moe-shared-expert-intermediate-size")
    if shared is not None:
        if family.startswith("qwen"):
            config["shared_expert_intermediate_size"] = int(shared[0])
        else:
            config["n_shared_experts"] = int(shared[0]) // config["moe_intermediate_size"]
    if family in DEEPSEEK:
        config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
    factor = float(flags.get("--rotary-scaling-factor", ("1",))[0])
    if factor != 1:
        yarn = {"type": "yarn", "factor": factor, "mscale": 1.0, "mscale_all_dim": 1.0}
        yarn["beta_fast"] = 1.0 if family == "kimi_k2" else 32
        config["rope_scaling"] = yarn | {"beta_slow": 1, "original_max_position_embeddings": 4096}
    if "--use-rope-scaling" in flags:
        bands = {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, **bands}
    return config | (LINEAR if family.startswith(("qwen3_5", "qwen3_next")) else {})


def compared(
    flags: Mapping[str, tuple[str, ...] | None], *, is_latent: bool
) -> dict[str, tuple[str, ...]]:
    """Flags with their values in one form, without those that change nothing."""
    # Without latent attention, Megatron reads another factor, whose default is that of Llama 3.1.
    ignored = {*WITHOUT_EFFECT, *(LATENT if is_latent else ("--rotary-scaling-factor",))}
    if flags.get("--moe-router-num-groups") in (None, ("1",)):
        ignored |= {"--moe-router-num-groups", "--moe-router-group-topk"}
    if float((flags.get("--rotary-scaling-factor") or ("1",))[0]) == 1:
        ignored |= {"--mscale", "--mscale-all-dim"}
    found = {}
    for name, values in flags.items():
        if values is None or name in ignored:
            continue
        if name == "--moe-layer-freq":
            frequency = eval(values[0])
            if frequency != 1 and 0 in frequency:
                found[name] = (str(frequency),)
            continue
        found[name] = tuple(number(one) for one in values)
    return {name: values for name, values in found.items() if values != DEFAULTS.get(name)}


def number(text: str) -> str:
    """One form of a number; other texts as they are."""
    try:
        return repr(float(text))
    except ValueError:
        return text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_familys_flags_are_those_of_slimes_script(script: Path) -> None:
    if script.stem.startswith(NOT_WRITTEN):
        return
    family = next(
        family for beginning, family in FAMILY.items() if script.stem.startswith(beginning)
    )
    theirs = flags_of(script)
    # Megatron's default.
    width = int(theirs["--hidden-size"][0]) // int(theirs["--num-attention-heads"][0])
    theirs.setdefault("--kv-channels", (str(width),))
    network = network_of(config_of(family, theirs))
    assert network is not None
    shape = Architecture(**network)
    is_latent = shape.latent_attention is not None
    ours = compared(architecture_flags(shape), is_latent=is_latent)
    expected = compared(theirs, is_latent=is_latent)
    if family == "minimax_m2":
        # The script leaves Megatron's rate, which would move the bias at each update.
        expected["--moe-router-bias-update-rate"] = ("0.0",)
        # Of scripts/run-minimax-m2.sh.
        expected["--model-name"] = ("minimax_m2",)
    assert ours == expected
    # No flag says it; the worker sets it (`set_yarn`).
    assert ("beta_fast 1.0" in (shape.rope_scaling or "")) is (family == "kimi_k2")


def test_every_family_has_a_script() -> None:
    stems = [script.stem for script in SCRIPTS if not script.stem.startswith(NOT_WRITTEN)]
    assert {
        next(family for name, family in FAMILY.items() if stem.startswith(name)) for stem in stems
    } == {*FAMILIES} - {*TEXT_TWINS}
