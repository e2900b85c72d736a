"""What SkyRL gets for checkpoints with a vision part, and for recurrent layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.backends.skyrl.control.render import check, native
from xp.composition import compose
from xp.spec import RunSpec

ONLY = (
    "trainer.policy.language_model_only",
    "trainer.ref.language_model_only",
    "generator.inference_engine.language_model_only",
)
REMOVE = "trainer.remove_microbatch_padding"
MEGATRON = "backend.parallel={strategy: megatron, tensor: 4}"
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 512,
}


@pytest.fixture(autouse=True)
def without_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def spec_of(*words: str) -> RunSpec:
    return compose(["env=sums", "backend=skyrl", "hardware=8xH100", *words])


def keys(spec: RunSpec) -> tuple[list[bool], bool]:
    assert [str(refusal) for refusal in check(spec)] == []
    values = native(spec)
    return [values[key] for key in ONLY], values[REMOVE]


def test_megatron_takes_the_text_network_out_of_qwen3_5_and_packs() -> None:
    assert keys(spec_of("model=qwen3.5-9b", MEGATRON)) == ([True, True, True], True)


def test_fsdp2_loads_the_whole_network_and_pads() -> None:
    assert keys(spec_of("model=qwen3.5-4b")) == ([False, False, True], False)


@pytest.mark.parametrize(
    ("family", "strategy", "packs"),
    [
        ("nemotron_h", "megatron", True),
        ("nemotron_h", "fsdp2", False),
        ("qwen3", "fsdp2", True),
    ],
)
def test_recurrent_layers_are_packed_where_megatron_separates_episodes(
    family: str, strategy: str, packs: bool, tmp_path: Path
) -> None:
    config = {**SIZES, "model_type": family, "architectures": ["XForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = (f"model.path={tmp_path}", f"backend.parallel.strategy={strategy}")
    assert keys(spec_of("model=hf", *words)) == ([False, False, False], packs)


def test_adapters_are_on_the_text_network_alone() -> None:
    import re

    pattern = native(spec_of("model=qwen3.5-4b", "model.lora=16"))[
        "trainer.policy.model.lora.exclude_modules"
    ]
    assert re.fullmatch(pattern, "model.visual.blocks.0.attn.qkv")
    assert not re.fullmatch(pattern, "model.language_model.layers.0.mlp.up_proj")
