"""Networks of Qwen's families with a vision part, a few hundred kilobytes each, with their tokenizers and processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from xp.worker.tiny_model import SHIPPED

MARKS: Final = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PATCH: Final = 14
MERGE: Final = 2
PIXELS: Final = {"min_pixels": (PATCH * MERGE) ** 2, "max_pixels": 64 * (PATCH * MERGE) ** 2}
TEMPLATE: Final = "qwen3_vl.jinja"
"""TRL's own copy of Qwen3-VL's template, which renders tools and pictures in their results."""


def tokenizer_with_marks() -> Any:
    """The tiny model's tokenizer with the marks of pictures."""
    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED)
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS)})
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / TEMPLATE).read_text(encoding="utf-8")
    return tokenizer


def config_of(
    family: str, tokenizer: Any, sizes: Mapping[str, int], vision: Mapping[str, int]
) -> Any:
    """The configuration of a network.

    Args:
        family: `qwen2_vl`, `qwen2_5_vl` or `qwen3_vl`.
        tokenizer: its tokenizer, with MARKS.
        sizes: hidden_size, intermediate_size, num_hidden_layers, num_attention_heads and head_dim of the text network.
        vision: width, depth and num_heads of the part for pictures.
    """
    from transformers import AutoConfig

    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in MARKS}
    half = sizes["head_dim"] // 2
    width = half // 4
    text: dict[str, Any] = {
        **sizes,
        "num_key_value_heads": sizes["num_attention_heads"],
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [half - 2 * width, width, width],
        },
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    common = {
        "depth": vision["depth"],
        "num_heads": vision["num_heads"],
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
    }
    part: dict[str, Any]
    if family == "qwen2_vl":
        part = {
            **common,
            "embed_dim": vision["width"],
            "hidden_size": sizes["hidden_size"],
            "mlp_ratio": 2,
        }
    else:
        part = {
            **common,
            "hidden_size": vision["width"],
            "intermediate_size": 2 * vision["width"],
            "out_hidden_size": sizes["hidden_size"],
        }
    if family == "qwen2_5_vl":
        part |= {"window_size": 112, "fullatt_block_indexes": [0]}
    if family == "qwen3_vl":
        # vLLM reads it; transformers' own code has no other way.
        text["rope_parameters"]["mrope_interleaved"] = True
        part |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    return AutoConfig.for_model(
        family,
        text_config=text,
        vision_config=part,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


PROCESSORS: Final = {
    "qwen2_vl": "Qwen2VLProcessor",
    "qwen2_5_vl": "Qwen2_5_VLProcessor",
    "qwen3_vl": "Qwen3VLProcessor",
}


def write_processor(family: str, tokenizer: Any, directory: Path) -> None:
    """Writes the files of tokenizer and processor, as a model of the hub has them."""
    tokenizer.save_pretrained(directory)
    settings: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": PROCESSORS[family],
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": PIXELS["min_pixels"], "longest_edge": PIXELS["max_pixels"]},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def write_model(
    family: str,
    directory: Path,
    sizes: Mapping[str, int],
    vision: Mapping[str, int],
    *,
    seed: int = 0,
    spread: float | None = None,
) -> Path:
    """Writes an untrained model; returns its directory.

    Args:
        family: see `config_of`, as for the sizes.
        directory: of the checkpoint.
        sizes: of the text network.
        vision: of the part for pictures.
        seed: of the weights.
        spread: standard deviation of all matrices. None means the family's own.
    """
    import torch

    from xp.worker.media import auto_class

    tokenizer = tokenizer_with_marks()
    config = config_of(family, tokenizer, sizes, vision)
    torch.manual_seed(seed)
    model = auto_class(config).from_config(config, dtype=torch.float32)
    if spread is not None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, spread)
    model.save_pretrained(directory)
    write_processor(family, tokenizer, directory)
    return directory
