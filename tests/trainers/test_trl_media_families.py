"""Which weights are trained, sent to an engine and published, on families that name their parts differently."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText

from tests.support.tiny_media import QWEN_VISION, SIGLIP_VISION, TEXT
from xp.fields.model import OUTSIDE_TEXT
from xp.worker.media import load_network, restore_media, text_weights

ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
QWEN_TEXT = {"rope_parameters": ROPE}
PICTURE = {"image_token_id": 159, "video_token_id": 158}
SQUARE = {**SIGLIP_VISION, "image_size": [28, 28], "patch_size": [14, 14]}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": QWEN_TEXT,
        "vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2},
        **PICTURE,
    },
    "qwen2_5_vl": {
        "text_config": QWEN_TEXT,
        "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [0]},
        **PICTURE,
    },
    "glm4v": {"text_config": QWEN_TEXT, "vision_config": QWEN_VISION, **PICTURE},
    "mistral3": {
        "text_config": {"model_type": "mistral"},
        "vision_config": {**SIGLIP_VISION, "model_type": "pixtral"},
        "image_token_index": 159,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2"},
        "vision_config": SQUARE,
        "image_token_id": 159,
    },
    "smolvlm": {
        "text_config": {"model_type": "llama"},
        "vision_config": SIGLIP_VISION,
        "image_token_id": 159,
        "scale_factor": 1,
    },
    "llava": {
        "text_config": {"model_type": "llama"},
        "vision_config": {
            **SIGLIP_VISION,
            "num_hidden_layers": 2,
            "model_type": "clip_vision_model",
        },
        "image_token_index": 159,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_trained_and_sent_and_the_rest_is_published_as_it_was(
    family: str, tmp_path: Path
) -> None:
    parts = FAMILIES[family]
    sizes = {**TEXT, "vocab_size": 160, "pad_token_id": 0, "eos_token_id": 2}
    config = AutoConfig.for_model(
        family, **{**parts, "text_config": {**sizes, **parts["text_config"]}}
    )
    start = tmp_path / "start"
    AutoModelForImageTextToText.from_config(config).save_pretrained(start)
    model = load_network(start, torch.float32)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    frozen = {name for name, _ in model.named_parameters()} - trained
    sent = text_weights(model).keys()
    assert trained <= sent
    assert frozen
    assert frozen.isdisjoint(sent)
    layers = {name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)}
    adapted = {name for name in layers if not re.fullmatch(OUTSIDE_TEXT, name)}
    assert adapted == {name for name in layers if f"{name}.weight" in trained} - {"lm_head"}

    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    published = tmp_path / "published"
    model.save_pretrained(published)
    restore_media(published, start)
    before = load_file(start / "model.safetensors")
    after = load_file(published / "model.safetensors")
    assert after.keys() == before.keys()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == len(trained)
    assert len(before) - len(changed) == len(frozen)
    AutoModelForImageTextToText.from_pretrained(published)
