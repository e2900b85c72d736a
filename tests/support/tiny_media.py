"""Tiny checkpoints with a vision part, whose text network is trained in tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import xp.builtin

TINY: Final = Path(xp.builtin.__file__).parent / "tiny"
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
QWEN_VISION: Final = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
SIGLIP_VISION: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
FAMILIES: Final = ("qwen3_vl", "gemma3", "qwen3_5")


def media_model(family: str, directory: Path, **text: Any) -> Path:
    """Writes an untrained model of a family with the tokenizer of xp's tiny model; the last four ids are of pictures."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY)
    vocab_size = len(tokenizer) + 8
    picture, other, begin, end = range(vocab_size - 4, vocab_size)
    sizes = {
        **TEXT,
        "vocab_size": vocab_size,
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if family == "gemma3":
        config = AutoConfig.for_model(
            family,
            text_config={**sizes, "sliding_window": 4096, "query_pre_attn_scalar": 16, **text},
            vision_config=SIGLIP_VISION,
            mm_tokens_per_image=4,
            image_token_index=picture,
            boi_token_index=begin,
            eoi_token_index=end,
        )
    else:
        rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
        layers = GATED_DELTA if family == "qwen3_5" else {"rope_parameters": rope}
        vision = (
            QWEN_VISION if family == "qwen3_5" else {**QWEN_VISION, "deepstack_visual_indexes": [0]}
        )
        config = AutoConfig.for_model(
            family,
            text_config={**sizes, **layers, **text},
            vision_config=vision,
            image_token_id=picture,
            video_token_id=other,
            vision_start_token_id=begin,
            vision_end_token_id=end,
        )
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy2(TINY / name, directory / name)
    (directory / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}\n')
    return directory
