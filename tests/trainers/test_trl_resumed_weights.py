"""A training that goes on from a checkpoint has its weights, though its file names them otherwise than the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.support.tiny_vision import vision_model
from xp.backends.trl.worker.resumed_weights import load_whole
from xp.errors import ExitCode, XpError
from xp.worker.media import load_network


def experts(directory: Path) -> Any:
    """A network whose experts are one tensor in memory, and one each in a file."""
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return AutoModelForCausalLM.from_pretrained(directory)


def seeing(directory: Path) -> Any:
    return load_network(vision_model("qwen2_vl", directory), torch.float32)


@pytest.mark.parametrize("make", [experts, seeing])
def test_all_weights_of_a_checkpoint_are_loaded(make: Any, tmp_path: Path) -> None:
    model = make(tmp_path / "start")
    trained = make(tmp_path / "start")
    with torch.no_grad():
        for weight in trained.parameters():
            weight += 0.01
    trained.save_pretrained(tmp_path / "checkpoint")
    # What transformers' Trainer does: most names are not found, and nothing is raised.
    found = model.load_state_dict(load_file(tmp_path / "checkpoint/model.safetensors"), False)
    assert found.missing_keys
    assert found.unexpected_keys
    load_whole(model, tmp_path / "checkpoint")
    expected = trained.state_dict()
    assert all(weight.equal(expected[name]) for name, weight in model.state_dict().items())


def test_a_checkpoint_without_some_weights_is_refused(tmp_path: Path) -> None:
    model = experts(tmp_path / "start")
    model.save_pretrained(tmp_path / "checkpoint")
    file = tmp_path / "checkpoint/model.safetensors"
    weights = load_file(file)
    kept = {name: weight for name, weight in weights.items() if not re.search("q_proj", name)}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(XpError, match="lacks 2 weights of the network, such as") as raised:
        load_whole(model, tmp_path / "checkpoint")
    assert raised.value.code is ExitCode.RUN_DIR
