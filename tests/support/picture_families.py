"""Untrained networks of the families that read pictures, with transformers' own processors and a small tokenizer.

Each is the network that TRL's scripts make of the family (trl/scripts/generate_tiny_models), with smaller pictures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.families import GATED_DELTA, HALF_ROPE, QWEN_VISION, TEXT
from xp.worker.tiny_model import SHIPPED

SIDE: Final = 28
"""Height and width of a picture, or of a part of it, in pixels."""
SPREAD: Final = 0.08
"""Standard deviation of the weights, so that a picture changes log-probabilities by more than 1e-3 nats."""
SIGLIP: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 14,
}
QWEN_MARKS: Final = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
}
QWEN_MARK: Final = "<|vision_start|><|image_pad|><|vision_end|>"
NORMAL: Final = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PINPOINTS: Final = [[SIDE, 2 * SIDE], [2 * SIDE, 2 * SIDE], [SIDE, 3 * SIDE]]
SQUARE: Final = {"height": SIDE, "width": SIDE}


@dataclass(frozen=True)
class PictureFamily:
    """What makes a tiny network of a family, with its processor."""

    template: str
    """Name of TRL's copy of the family's chat template."""
    processor: str
    """Class of the processor."""
    image_processor: Mapping[str, Any]
    """preprocessor_config.json."""
    vision: Mapping[str, Any]
    tokens: Mapping[str, str]
    """Key of config.json -> token."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Tokens that the tokenizer knows by a name."""
    marks: tuple[str, ...] = ()
    """Further special tokens."""
    text: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Of config.json, beside its sections."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the processor: processor_config.json."""
    mark: str | None = None
    """What the family's own template, which TRL does not ship, has in place of QWEN_MARK. None means that it is TRL's."""


def _split(kind: str) -> PictureFamily:
    """Idefics3 and SmolVLM: a picture is split into rows and columns, and is there once more as a whole."""
    return PictureFamily(
        template="smolvlm" if kind == "SmolVLM" else "idefics3",
        processor=f"{kind}Processor",
        image_processor={
            "image_processor_type": f"{kind}ImageProcessor",
            "size": {"longest_edge": 2 * SIDE},
            "max_image_size": {"longest_edge": SIDE},
            "do_image_splitting": True,
            **NORMAL,
        },
        vision=SIGLIP,
        tokens={"image_token_id": "<image>"},
        marks=(
            "<fake_token_around_image>",
            "<global-img>",
            "<end_of_utterance>",
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        text={"model_type": "llama"},
        whole={"scale_factor": 2},
        settings={"image_seq_len": 1},
    )


FAMILIES: Final[Mapping[str, PictureFamily]] = {
    "gemma3": PictureFamily(
        template="gemma3",
        processor="Gemma3Processor",
        image_processor={
            "image_processor_type": "Gemma3ImageProcessor",
            "size": SQUARE,
            **NORMAL,
        },
        vision=SIGLIP,
        tokens={
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
        },
        named={
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        marks=("<start_of_turn>", "<end_of_turn>"),
        text={
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        whole={"mm_tokens_per_image": 4},
        settings={"image_seq_length": 4},
    ),
    "idefics3": _split("Idefics3"),
    "smolvlm": _split("SmolVLM"),
    "internvl": PictureFamily(
        template="qwen2_5_vl",
        processor="InternVLProcessor",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": SQUARE,
            "max_patches": 3,
            **NORMAL,
        },
        vision={**SIGLIP, "image_size": [SIDE, SIDE], "patch_size": [14, 14]},
        tokens={"image_token_id": "<IMG_CONTEXT>"},
        named={
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
        text={"model_type": "qwen2"},
        whole={"image_seq_length": 1},
        settings={"image_seq_length": 1},
        mark="<IMG_CONTEXT>\n",
    ),
    "llava_next": PictureFamily(
        template="llava_next",
        processor="LlavaNextProcessor",
        image_processor={
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": SIDE},
            "crop_size": SQUARE,
            "image_grid_pinpoints": PINPOINTS,
            **NORMAL,
        },
        vision={**SIGLIP, "model_type": "clip_vision_model", "num_hidden_layers": 3},
        tokens={"image_token_index": "<image>"},
        marks=("</s>",),
        text={"model_type": "mistral"},
        whole={"image_grid_pinpoints": PINPOINTS, "vision_feature_select_strategy": "default"},
        settings={
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "qwen3_5": PictureFamily(
        template="qwen3_5_nothink",
        processor="Qwen3VLProcessor",
        image_processor={
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": 16,
            "merge_size": 2,
            "temporal_patch_size": 2,
            "size": {"shortest_edge": 32**2, "longest_edge": 64 * 32**2},
            **NORMAL,
        },
        vision={**QWEN_VISION, "patch_size": 16, "num_position_embeddings": 64},
        tokens={f"{name}_id": mark for name, mark in QWEN_MARKS.items()},
        marks=tuple(QWEN_MARKS.values()),
        text={**GATED_DELTA, **HALF_ROPE},
    ),
}


def picture_model(family: str, directory: Path, *, spread: float = SPREAD) -> Path:
    """Writes an untrained model with its tokenizer and processor; returns its directory."""
    import torch
    from transformers import AutoConfig

    from xp.worker.media import auto_class

    entry = FAMILIES[family]
    tokenizer = _tokenizer(entry)
    ids = {key: tokenizer.convert_tokens_to_ids(mark) for key, mark in entry.tokens.items()}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {**TEXT, "vocab_size": len(tokenizer), "bos_token_id": None, **ends, **entry.text}
    sections = {"text_config": text, "vision_config": dict(entry.vision)}
    config = AutoConfig.for_model(
        family, **sections, **ids, **entry.whole, **ends, tie_word_embeddings=True
    )
    torch.manual_seed(0)
    model = auto_class(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, spread)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    settings = {"processor_class": entry.processor, **entry.image_processor}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    if entry.settings:
        whole = {"processor_class": entry.processor, **entry.settings}
        (directory / "processor_config.json").write_text(json.dumps(whole))
    return directory


def _tokenizer(entry: PictureFamily) -> Any:
    """The tiny model's tokenizer with the family's tokens and template."""
    import trl
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED, extra_special_tokens=dict(entry.named))
    marks = dict.fromkeys([*entry.marks, *entry.tokens.values(), *entry.named.values()])
    tokenizer.add_tokens(list(marks), special_tokens=True)
    folder = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (folder / f"{entry.template}.jinja").read_text(encoding="utf-8")
    if entry.mark is not None:
        assert QWEN_MARK in tokenizer.chat_template
        tokenizer.chat_template = tokenizer.chat_template.replace(QWEN_MARK, entry.mark)
    return tokenizer
