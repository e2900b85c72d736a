"""Tiny networks of the families that people train, by transformers' `model_type`, and the tests that train them.

Nothing heavy is imported here, since a page of the documentation is made from TRAINED.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xp.worker

SPREAD: Final = 0.05
"""Standard deviation of the weights with which each part of a network changes its log-probabilities by more than 1e-5
nats, the largest difference that the tests allow in float32."""
TINY: Final = Path(xp.worker.__file__).parent / "tiny"
TEXT: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
GATED_DELTA: Final = {
    "num_hidden_layers": 4,
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}
EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED: Final = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
LATENT: Final = {
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 4,
}
INDEXED: Final = {"index_topk": 16, "index_head_dim": 8, "index_n_heads": 16}
"""The indexer of sparse attention, which keeps fewer tokens than an episode has; with few heads, tokens have equal
scores, of which it takes any."""
ROPE: Final = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
}
HALF_ROPE: Final = {
    "rope_parameters": {
        **ROPE["rope_parameters"],
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.5,
    }
}
QWEN_VISION: Final = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
DEEPSTACK_VISION: Final = {**QWEN_VISION, "deepstack_visual_indexes": [0]}
SIGLIP_VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SQUARE_VISION: Final = {**SIGLIP_VISION, "image_size": [28, 28], "patch_size": [14, 14]}
PIXTRAL_VISION: Final = {**SIGLIP_VISION, "model_type": "pixtral"}
PICTURES: Final = (
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)
GLM_PICTURES: Final = (
    "image_token_id",
    "video_token_id",
    "image_start_token_id",
    "image_end_token_id",
)
GLM_VISION: Final = {**QWEN_VISION, "image_size": 28, "patch_size": 14}


@dataclass(frozen=True)
class Family:
    """What makes a tiny network of a family: values of its config.json."""

    text: Mapping[str, Any] = field(default_factory=dict)
    """Of the text network, beside TEXT."""
    media: Mapping[str, Any] = field(default_factory=dict)
    """Sections for pictures and sound; empty for a model of text alone."""
    tokens: tuple[str, ...] = ()
    """Keys of the last ids of the vocabulary, which stand for pictures and sound."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Of the whole model, beside its sections."""
    name: str | None = None
    """`model_type` of the checkpoint. None means the table's key."""


FAMILIES: Final[Mapping[str, Family]] = {
    "qwen3_5": Family(GATED_DELTA, {"vision_config": QWEN_VISION}, PICTURES),
    "qwen3_5_moe": Family(
        {**GATED_DELTA, **EXPERTS, "shared_expert_intermediate_size": 16},
        {"vision_config": QWEN_VISION},
        PICTURES,
    ),
    "qwen3_vl": Family(ROPE, {"vision_config": DEEPSTACK_VISION}, PICTURES),
    "qwen3_vl_moe": Family({**ROPE, **EXPERTS}, {"vision_config": DEEPSTACK_VISION}, PICTURES),
    "gemma3": Family(
        {"sliding_window": 4096, "query_pre_attn_scalar": 16},
        {"vision_config": SIGLIP_VISION},
        ("image_token_index", "boi_token_index", "eoi_token_index"),
        {"mm_tokens_per_image": 4},
    ),
    "gemma3_text": Family(
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    ),
    "gemma4": Family(
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "sliding_window": 16,
            "head_dim": 32,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
        },
        {
            "vision_config": {
                **SIGLIP_VISION,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "pooling_kernel_size": 1,
                "position_embedding_size": 16,
            },
            "audio_config": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "subsampling_conv_channels": [4, 4],
                "output_proj_dims": 32,
            },
        },
        ("image_token_id", "audio_token_id", "boi_token_id", "eoi_token_id"),
    ),
    "mistral3": Family(
        {"model_type": "mistral"}, {"vision_config": PIXTRAL_VISION}, ("image_token_index",)
    ),
    "ministral3": Family(
        {"model_type": "ministral3"},
        {"vision_config": PIXTRAL_VISION},
        ("image_token_index",),
        name="mistral3",
    ),
    "glm4v": Family(ROPE, {"vision_config": GLM_VISION}, GLM_PICTURES),
    "glm46v": Family(ROPE, {"vision_config": GLM_VISION}, GLM_PICTURES),
    "glm4v_moe": Family({**HALF_ROPE, **ROUTED}, {"vision_config": GLM_VISION}, GLM_PICTURES),
    "kimi_k25": Family(
        {"model_type": "deepseek_v3", **ROUTED, **LATENT},
        {
            "vision_config": {
                **SIGLIP_VISION,
                "pos_emb_height": 4,
                "pos_emb_width": 4,
                "pos_emb_time": 2,
            }
        },
        PICTURES,
        {"projection_hidden_size": 32, "tie_word_embeddings": False},
    ),
    "internvl": Family(
        {"model_type": "qwen3"}, {"vision_config": SQUARE_VISION}, ("image_token_id",)
    ),
    "nemotron_h": Family(
        {
            "num_hidden_layers": 4,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "chunk_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        }
    ),
    "gpt_oss": Family(
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    ),
    "glm4_moe": Family(ROUTED),
    "glm_moe_dsa": Family({**ROUTED, **LATENT, **INDEXED}),
    "deepseek_v32": Family({**ROUTED, **LATENT, **INDEXED}),
    "deepseek_v3": Family({**ROUTED, **LATENT}),
    "minimax_m2": Family({"num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": Family({"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": Family(
        {**EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}
    ),
    "smollm3": Family(),
    "olmo3": Family({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen3": Family(),
    "qwen3_moe": Family(EXPERTS),
    "llama": Family(),
    "qwen2_vl": Family(
        ROPE,
        {"vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}},
        PICTURES,
    ),
    "qwen2_5_vl": Family(
        ROPE, {"vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0]}}, PICTURES
    ),
    "smolvlm": Family(
        {"model_type": "llama"},
        {"vision_config": SIGLIP_VISION},
        ("image_token_id",),
        {"scale_factor": 1},
    ),
    "llava": Family(
        {"model_type": "llama"},
        {
            "vision_config": {
                **SIGLIP_VISION,
                "num_hidden_layers": 2,
                "model_type": "clip_vision_model",
            }
        },
        ("image_token_index",),
    ),
}
"""`model_type` -> its tiny network; Ministral 3's checkpoints are of Mistral 3's with a text network of their own."""


def write_family(family: str, directory: Path, *, spread: float | None = None, **text: Any) -> Path:
    """Writes an untrained model with the tokenizer of xp's tiny model, and returns its directory.

    Args:
        family: key of FAMILIES.
        directory: of the new checkpoint.
        spread: standard deviation of all matrices, so that each part of the network matters. None means the family's
            own initial values.
        text: further values of the text network.
    """
    import torch
    from transformers import AutoTokenizer

    from xp.worker.media import auto_class

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    vocab_size = len(tokenizer) + 8
    config = family_config(
        family,
        vocab_size,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **text,
    )
    torch.manual_seed(0)
    model = auto_class(config).from_config(config, dtype=torch.float32)
    if spread is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, spread)
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy2(TINY / name, directory / name)
    if FAMILIES[family].media:
        (directory / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}\n')
    return directory


def family_config(family: str, vocab_size: int, **text: Any) -> Any:
    """The configuration of a tiny network, of transformers' own class; the last ids stand for pictures and sound."""
    from transformers import AutoConfig

    entry = FAMILIES[family]
    name = entry.name or family
    sizes = {**TEXT, "vocab_size": vocab_size, **entry.text, **text}
    if "hidden_size_per_layer_input" in sizes:
        sizes["vocab_size_per_layer_input"] = vocab_size
    if not entry.media:
        return AutoConfig.for_model(name, **sizes)
    tokens = {
        key: vocab_size - len(entry.tokens) + number for number, key in enumerate(entry.tokens)
    }
    return AutoConfig.for_model(name, text_config=sizes, **entry.media, **tokens, **entry.whole)


REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    "skyrl": {
        "deepseek_v32": "tests/trainers/test_skyrl_architectures.py::test_the_wrapper_is_the_model[deepseek_v32]",
        "glm_moe_dsa": "tests/trainers/test_skyrl_architectures.py::test_the_wrapper_is_the_model[glm_moe_dsa]",
        "gpt_oss": "tests/limits/test_skyrl.py::test_fsdp2_has_no_attention_for_sinks",
    },
}
"""Trainer -> `model_type` -> node id of the proof that it cannot train the family; under SkyRL by FSDP2."""


def proofs_of(test: str, trainer: str) -> Mapping[str, str]:
    """`model_type` -> node id, for a parametrized test of all families that a trainer takes."""
    return {
        family: f"tests/trainers/{test}[{family}]"
        for family in FAMILIES
        if family not in REFUSED.get(trainer, {})
    }


_SLIME: Final = "tests/trainers/test_slime_megatron.py"
TRAINED: Final[Mapping[str, Mapping[str, str]]] = {
    "trl": proofs_of(
        "test_trl_families.py::test_a_family_is_planned_sampled_updated_and_published", "trl"
    ),
    "skyrl": proofs_of(
        "test_skyrl_families.py::test_a_family_is_planned_sampled_updated_sent_and_published",
        "skyrl",
    ),
    "slime": {
        **{
            family: f"{_SLIME}::test_a_random_model_of_a_family_is_loaded_updated_and_exported[{family}]"
            for family in ("deepseek_v3", "glm4_moe", "minimax_m2")
        },
        **{
            family: f"{_SLIME}::test_a_checkpoint_with_media_is_trained_on_text[{family}]"
            for family in ("glm4v_moe", "qwen3_vl")
        },
    },
}
"""Trainer -> `model_type` -> node id of the test that plans, samples, updates and publishes its tiny network."""
