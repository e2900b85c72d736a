"""What a plan for Slime says of checkpoints with parts for pictures, and of GLM-5."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.families import GATED_DELTA, QWEN_VISION, TEXT
from tests.support.jobs import PLACES, job_named
from xp.backends.slime.control.render import check, memory, render, train_flags
from xp.composition import compose
from xp.fields.slime_media import (
    FROZEN,
    FROZEN_VISION,
    ONE_ROW,
    media_note,
    pictures_note,
)
from xp.spec import RunSpec

ON_SLIME = ("env=whodunit", "backend=slime", "hardware=h100x8", "model.dialect=hermes")


def spec_of(directory: Path, kind: str, text: dict[str, Any], *more: str) -> RunSpec:
    """A run of a checkpoint whose config.json is on this machine."""
    config = {
        "model_type": kind,
        "architectures": ["AnyForConditionalGeneration"],
        "text_config": {**TEXT, "vocab_size": 96, **text},
        "vision_config": QWEN_VISION,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return compose([*ON_SLIME, "model=hf", f"model.path={directory}", *more])


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("qwen3_5", {"model_type": "qwen3_5_text", **GATED_DELTA}, FROZEN),
        (
            "qwen3_vl",
            {"model_type": "qwen3_vl_text"},
            "Slime has no loader of qwen3_vl; its code of qwen3",
        ),
        (
            "internvl",
            {"model_type": "qwen3"},
            "Not tried: whether SGLang takes an update of internvl",
        ),
    ],
)
def test_a_plan_says_how_the_text_network_is_trained(
    kind: str, text: dict[str, Any], words: str, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, kind, text)
    assert not [refusal for refusal in check(spec) if refusal.field.startswith("model")]
    assert words in media_note(spec)


@pytest.mark.parametrize("family", ["gemma3_text", "qwen3_vl_moe_text"])
def test_a_text_network_without_a_loader_is_refused(family: str, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "any", {"model_type": family})
    (refusal,) = check(spec)
    assert refusal.field == "model.architecture.model_type"
    assert f"not of {family}; use backend=skyrl or trl" in refusal.reason


def test_the_flags_are_those_of_the_text_sections_twin(tmp_path: Path) -> None:
    flags = train_flags(spec_of(tmp_path, "qwen3_vl", {"model_type": "qwen3_vl_text"}), PLACES)
    assert flags["--qk-layernorm"] == ()
    assert flags["--hidden-size"] == (str(TEXT["hidden_size"]),)
    assert flags["--spec"] is None
    assert flags["--hf-checkpoint"] == (str(tmp_path),)


def test_pictures_choose_the_network_with_eyes_and_freeze_them(tmp_path: Path) -> None:
    text = {"model_type": "qwen3_5_text", **GATED_DELTA}
    spec = spec_of(tmp_path, "qwen3_5", text, "model.images=true")
    flags = train_flags(spec, PLACES)
    provider = ("slime_plugins.models.qwen3_5_vl", "get_qwen3_5_vl_model_provider")
    assert flags["--spec"] == provider
    (pattern,) = flags["--freeze-params-name-list"]
    assert re.search(pattern, "model.visual.blocks.0.attn.qkv.weight")
    assert not re.search(pattern, "language_model.decoder.layers.0.mlp.linear_fc1.weight")
    assert flags["--sglang-disable-fast-image-processor"] == ()
    assert memory(spec).trains_beside_media
    assert media_note(spec) == FROZEN_VISION
    text_flags = train_flags(spec_of(tmp_path, "qwen3_5", text), PLACES)
    assert text_flags["--spec"] == ("slime_plugins.models.qwen3_5", "get_qwen3_5_spec")
    assert "--freeze-params-name-list" not in text_flags


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("training.micro_batch_size=1", "Not tried: pictures on accelerators, on several ranks."),
        ("backend.parallel.context=2", "with backend.parallel.context (Slime's plug-in supports"),
        ("training.micro_batch_size=2", ONE_ROW),
        ("training.max_tokens_per_micro_batch=8192", ONE_ROW),
    ],
)
def test_the_note_on_pictures_names_what_is_not_tried(
    words: str, note: str, tmp_path: Path
) -> None:
    text = {"model_type": "qwen3_5_text", **GATED_DELTA}
    assert note in pictures_note(spec_of(tmp_path, "qwen3_5", text, "model.images=true", words))
    assert pictures_note(spec_of(tmp_path, "qwen3_5", text)) == ""


def test_glm_5_is_planned_with_the_keys_of_slimes_script() -> None:
    model = ("model=hf", "model.path=zai-org/GLM-5", "model.dialect=glm")
    size = ("hardware=h200x8", "hardware.num_nodes=32", "model.max_context_tokens=32768")
    spec = compose([*ON_SLIME[:2], *model, *size])
    flags = train_flags(spec, PLACES)
    assert flags["--spec"] == ("slime_plugins.models.glm5.glm5", "get_glm5_spec")
    assert flags["--allgather-cp"] == flags["--enable-experimental"] == ()
    assert flags["--moe-layer-freq"] == ("[0]*3+[1]*75",)
    train = job_named("train", render(spec, PLACES))
    assert '"INDEXER_ROPE_NEOX_STYLE": "0"' in "".join(train.files.values())
