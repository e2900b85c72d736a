"""What SkyRL gets for checkpoints with a vision part, and for recurrent layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from xp.backends.skyrl.control.render import check, native
from xp.composition import compose
from xp.spec import RunSpec

REMOVE = "trainer.remove_microbatch_padding"
ONLY = tuple(
    f"{part}.language_model_only"
    for part in ("trainer.policy", "trainer.ref", "generator.inference_engine")
)
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


def directory_of(place: Path, family: str, text_family: str, **text: Any) -> str:
    config = {
        "model_type": family,
        "architectures": [f"{family}ForConditionalGeneration"],
        "text_config": {**SIZES, **text, "model_type": text_family},
        "vision_config": {"depth": 1},
    }
    (place / "config.json").write_text(json.dumps(config))
    return f"model.path={place}"


def keys(spec: RunSpec) -> tuple[list[bool], bool]:
    assert [str(refusal) for refusal in check(spec)] == []
    values = native(spec)
    return [values[key] for key in ONLY], values[REMOVE]


def test_megatron_takes_the_text_network_out_of_qwen3_5_and_packs() -> None:
    assert keys(spec_of("model=qwen3.5-9b", MEGATRON)) == ([True, True, True], True)


def test_padding_may_stay_under_megatron() -> None:
    words = ("model=qwen3.5-9b", MEGATRON, f"backend.overrides.{REMOVE}=false")
    assert keys(spec_of(*words)) == ([True, True, True], False)


@pytest.mark.parametrize("attention", ["flash", "sdpa"])
def test_fsdp2_loads_the_whole_network_and_pads(attention: str) -> None:
    spec = spec_of("model=qwen3.5-4b", f"backend.attention={attention}")
    assert keys(spec) == ([False, False, True], False)


@pytest.mark.parametrize("strategy", ["fsdp2", "megatron"])
def test_another_family_is_loaded_whole(strategy: str, tmp_path: Path) -> None:
    path = directory_of(tmp_path, "qwen3_vl", "qwen3_vl_text")
    spec = spec_of("model=hf", path, f"backend.parallel.strategy={strategy}")
    assert keys(spec) == ([False, False, True], False)


@pytest.mark.parametrize(
    ("family", "strategy", "packs"),
    [
        ("nemotron_h", "megatron", True),
        ("nemotron_h", "fsdp2", False),
        ("lfm2", "megatron", False),
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
