"""Makes `xp/models/known_models.json`, the networks that a plan knows without a hub, from public sources:

    python -m tools.architectures SLIME_PATH

Most are Slime's `scripts/models/*.sh` at the commit of conf/backend/slime.yaml; the others are stated below with their
source. Each is written as the part of its config.json that decides the network; a model that no source states whole
is left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from xp.models.network import network_of

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "xp/models/known_models.json"
BRIDGE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob"
QWEN: Final = f"{BRIDGE}/07d0d14aceb47916885f74abeace7ac5d167aa75/src/megatron/bridge/models/qwen/qwen_provider.py"
GPT_OSS: Final = "transformers 5.23.0, models/gpt_oss/configuration_gpt_oss.py"
LLAMA: Final = f"{BRIDGE}/2afd2d34f7d7b2e84095af1a7fd7244902189ebc/src/megatron/bridge/models/llama/llama_provider.py"

SCRIPTS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "qwen2.5-0.5B": ("qwen2", ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B-Instruct")),
    "qwen2.5-1.5B": ("qwen2", ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct")),
    "qwen2.5-3B": ("qwen2", ("Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-3B-Instruct")),
    "qwen2.5-7B": ("qwen2", ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct")),
    "qwen2.5-32B": ("qwen2", ("Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-32B-Instruct")),
    "qwen3-0.6B": ("qwen3", ("Qwen/Qwen3-0.6B",)),
    "qwen3-1.7B": ("qwen3", ("Qwen/Qwen3-1.7B",)),
    "qwen3-4B": ("qwen3", ("Qwen/Qwen3-4B",)),
    "qwen3-4B-Instruct-2507": (
        "qwen3",
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-4B-Thinking-2507"),
    ),
    "qwen3-8B": ("qwen3", ("Qwen/Qwen3-8B",)),
    "qwen3-14B": ("qwen3", ("Qwen/Qwen3-14B",)),
    "qwen3-32B": ("qwen3", ("Qwen/Qwen3-32B",)),
    "qwen3-30B-A3B": ("qwen3_moe", ("Qwen/Qwen3-30B-A3B",)),
    "qwen3-235B-A22B": ("qwen3_moe", ("Qwen/Qwen3-235B-A22B",)),
    "llama3.1-8B-Instruct": (
        "llama",
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
    ),
    "llama3.2-3B-Instruct": (
        "llama",
        ("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"),
    ),
    "glm4-9B": ("glm4", ("zai-org/GLM-4-9B-0414", "zai-org/GLM-Z1-9B-0414")),
    "glm4.5-106B-A12B": ("glm4_moe", ("zai-org/GLM-4.5-Air",)),
    "glm4.5-355B-A32B": ("glm4_moe", ("zai-org/GLM-4.5",)),
    "deepseek-v3": ("deepseek_v3", ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1")),
    "moonlight": ("deepseek_v3", ("moonshotai/Moonlight-16B-A3B-Instruct",)),
    "glm5-744B-A40B": ("glm_moe_dsa", ("zai-org/GLM-5",)),
    "kimi-k2": ("kimi_k2", ("moonshotai/Kimi-K2-Instruct",)),
    "minimax-m2": ("minimax_m2", ("MiniMaxAI/MiniMax-M2.5",)),
}
"""Script -> family, and the models with this network."""
FLAGS: Final = {
    "num_hidden_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "intermediate_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "num_key_value_heads": "--num-query-groups",
    "head_dim": "--kv-channels",
    "vocab_size": "--vocab-size",
    "rms_norm_eps": "--norm-epsilon",
    "rope_theta": "--rotary-base",
    "partial_rotary_factor": "--rotary-percent",
    "max_position_embeddings": "--max-position-embeddings",
    "n_routed_experts": "--num-experts",
    "num_experts_per_tok": "--moe-router-topk",
    "moe_intermediate_size": "--moe-ffn-hidden-size",
    "routed_scaling_factor": "--moe-router-topk-scaling-factor",
    "n_group": "--moe-router-num-groups",
    "topk_group": "--moe-router-group-topk",
    "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_nope_head_dim": "--qk-head-dim",
    "qk_rope_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
}
"""Key of config.json -> Megatron's flag."""
LLAMA3: Final = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN2: Final = {
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
}
_GPT_OSS: Final = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 201088,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0},
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "attention_bias": True,
    "num_experts_per_tok": 4,
}
_LLAMA3: Final = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "max_position_embeddings": 131072,
    # Of all models with Llama 3's tokenizer (scripts/models/llama3.1-8B-Instruct.sh).
    "vocab_size": 128256,
}
STATED: Final[tuple[tuple[tuple[str, ...], str, dict[str, Any]], ...]] = (
    (
        ("openai/gpt-oss-20b",),
        f"{GPT_OSS}, with the 24 layers and 32 experts of the model's card",
        {**_GPT_OSS, "num_hidden_layers": 24, "num_local_experts": 32},
    ),
    (
        ("openai/gpt-oss-120b",),
        GPT_OSS,
        {**_GPT_OSS, "num_hidden_layers": 36, "num_local_experts": 128},
    ),
    (
        ("Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-14B-Instruct"),
        f"{QWEN} (Qwen25ModelProvider14B)",
        {
            **_QWEN2,
            "num_hidden_layers": 48,
            "hidden_size": 5120,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "intermediate_size": 13824,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
        },
    ),
    (
        ("Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-72B-Instruct"),
        f"{QWEN} (Qwen25ModelProvider72B)",
        {
            **_QWEN2,
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 29568,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
        },
    ),
    (
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking"),
        f"{QWEN} (Qwen3NextModelProvider80B_A3B)",
        {
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "intermediate_size": 5120,
            "vocab_size": 151936,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "full_attention_interval": 4,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
        },
    ),
    (
        (
            "meta-llama/Llama-3.1-70B",
            "meta-llama/Llama-3.1-70B-Instruct",
            "meta-llama/Llama-3.3-70B-Instruct",
        ),
        f"{LLAMA} (Llama31ModelProvider70B)",
        {
            **_LLAMA3,
            "num_hidden_layers": 80,
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_attention_heads": 64,
            "tie_word_embeddings": False,
            "rope_scaling": {**LLAMA3, "factor": 8.0},
        },
    ),
    (
        ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct"),
        f"{LLAMA} (Llama32ModelProvider1B)",
        {
            **_LLAMA3,
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "tie_word_embeddings": True,
            "rope_scaling": {**LLAMA3, "factor": 32.0},
        },
    ),
)
"""Models, source and config.json of the networks that are in no script."""


def flags_of(script: Path) -> dict[str, Any]:
    """Flag -> value of a script's MODEL_ARGS; true: a switch."""
    command = 'set -e; source "$1"; printf "%s\\n" "${MODEL_ARGS[@]}"'
    words = subprocess.run(
        ["bash", "-c", command, "-", script], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, Any] = {}
    for word in words.splitlines():
        if word.startswith("--"):
            name = word
            found[name] = True
        elif found[name] is True:
            found[name] = _value(word)
    return found


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def config_of_flags(family: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The part of config.json that Megatron's flags state."""
    config = {
        "model_type": family,
        **{key: flags[flag] for key, flag in FLAGS.items() if flag in flags},
    }
    # Megatron's default.
    config.setdefault("rms_norm_eps", 1e-5)
    config["tie_word_embeddings"] = "--untie-embeddings-and-output-weights" not in flags
    config["attention_bias"] = "--add-qkv-bias" in flags
    if "--kv-lora-rank" in flags:
        config["num_key_value_heads"] = config["num_attention_heads"]
        factor = flags.get("--rotary-scaling-factor", 1)
        if factor != 1:
            scaling = {
                "type": "yarn",
                "factor": factor,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
            }
            config["rope_scaling"] = scaling | {
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
            }
    elif family in ("glm4_moe", "minimax_m2"):
        config["use_qk_norm"] = "--qk-layernorm" in flags
    if "--use-rope-scaling" in flags:
        config["rope_scaling"] = {**LLAMA3, "factor": flags["--rotary-scaling-factor"]}
    width = flags.get("--moe-shared-expert-intermediate-size")
    if width is not None:
        config["n_shared_experts"] = width // flags["--moe-ffn-hidden-size"]
    if "--num-experts" in flags:
        is_sigmoid = flags["--moe-router-score-function"] == "sigmoid"
        config["norm_topk_prob"] = is_sigmoid or "--moe-router-pre-softmax" not in flags
        # `[0, 0, 0, 1, ...]`, `[0]*3+[1]*58`: the dense layers come first.
        kinds = re.findall(r"([01])\]?(?:\*(\d+))?", str(flags["--moe-layer-freq"]))
        config["first_k_dense_replace"] = sum(
            int(times or 1) for kind, times in kinds if kind == "0"
        )
        if is_sigmoid:
            config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
    return config


def main(slime: Path) -> None:
    commit = yaml.safe_load((ROOT / "conf/backend/slime.yaml").read_text())["commits"]["SLIME_PATH"]
    source = f"https://github.com/THUDM/slime/blob/{commit}/scripts/models"
    entries = [
        (
            names,
            f"{source}/{script}.sh",
            config_of_flags(family, flags_of(slime / f"scripts/models/{script}.sh")),
        )
        for script, (family, names) in SCRIPTS.items()
    ]
    content: dict[str, dict[str, Any]] = {
        name: {"source": source, "config": config}
        for names, source, config in (*entries, *STATED)
        for name in names
    }
    for name, one in content.items():
        if network_of(one["config"]) is None:
            raise SystemExit(f"{name}: {one['source']} does not state the whole network")
    lines = [f"{json.dumps(name)}: {json.dumps(content[name])}" for name in sorted(content)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
