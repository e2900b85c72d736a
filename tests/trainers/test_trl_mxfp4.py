"""A checkpoint with experts in MXFP4, as gpt-oss is published, is trained in the type of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from xp.worker.facts import check_weights
from xp.worker.media import load_network

EXPERTS = "model.layers.0.mlp.experts"


def packed_at(place: Path) -> dict[str, tuple[Any, Any]]:
    """Writes a tiny network with packed experts; returns the blocks and scales of each matrix."""
    config = GptOssConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        layer_types=["full_attention"],
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(place)
    file = place / "model.safetensors"
    weights = load_file(file)
    chance = torch.Generator().manual_seed(1)
    packed = {}
    for name, rows in (("gate_up_proj", 64), ("down_proj", 32)):
        del weights[f"{EXPERTS}.{name}"]
        blocks = torch.randint(
            0,
            256,
            (2, rows, 1, 16),
            generator=chance,
            dtype=torch.uint8,
        )
        scales = torch.randint(
            120,
            130,
            (2, rows, 1),
            generator=chance,
            dtype=torch.uint8,
        )
        weights[f"{EXPERTS}.{name}_blocks"] = blocks
        weights[f"{EXPERTS}.{name}_scales"] = scales
        packed[name] = (blocks, scales)
    save_file(weights, file, metadata={"format": "pt"})
    content = json.loads((place / "config.json").read_text())
    content["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["lm_head"],
    }
    (place / "config.json").write_text(json.dumps(content))
    return packed


def test_packed_experts_are_loaded_as_transformers_unpacks_them(tmp_path: Path) -> None:
    packed = packed_at(tmp_path)
    check_weights(tmp_path)
    model = load_network(tmp_path, torch.float32)
    weights = dict(model.named_parameters())
    for name, (blocks, scales) in packed.items():
        expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        weight = weights[f"{EXPERTS}.{name}"]
        assert weight.dtype is torch.float32
        assert weight.requires_grad
        assert torch.equal(weight, expected.to(torch.bfloat16).float())
    model.save_pretrained(tmp_path / "published")
    assert "quantization_config" not in json.loads((tmp_path / "published/config.json").read_text())
