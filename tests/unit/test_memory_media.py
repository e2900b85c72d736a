"""The memory of parts for pictures: counted once, without gradients or moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_media import FAMILIES, QWEN_VISION, media_model
from xp.composition import compose
from xp.lib.models.weights import media_parameters
from xp.planning.memory.estimate import estimate
from xp.worker.media import load_network, media_names


@pytest.mark.parametrize("family", FAMILIES)
def test_they_are_counted_by_the_files_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    import torch

    start = media_model(family, tmp_path / family)
    model = load_network(start, torch.float32)
    frozen = media_names(model)
    own = sum(weight.numel() for name, weight in model.named_parameters() if name in frozen)
    config: dict[str, Any] = json.loads((start / "config.json").read_text())
    assert media_parameters(start, config) == own > 0
    assert media_parameters(start, config["text_config"]) == 0


def test_without_files_the_layers_are_counted() -> None:
    config = {"vision_config": {**QWEN_VISION, "depth": 3}}
    assert media_parameters(None, config) == 3 * (4 * 32**2 + 2 * 32 * 64)


@pytest.mark.parametrize(("lora", "width"), [("null", 4), ("8", 2)])
def test_they_have_no_gradients_and_no_moments(lora: str, width: int, tmp_path: Path) -> None:
    start = media_model("qwen3_vl", tmp_path / "start")
    words = [
        "env=sums",
        "hardware=a100x2",
        "model=hf",
        f"model.path={start}",
        "backend.parallel.strategy=ddp",
        f"model.lora={lora}",
    ]
    whole = estimate(compose(words)).training
    parameters = media_parameters(start, json.loads((start / "config.json").read_text()))
    other = tmp_path / "other"
    start.rename(other)
    config = json.loads((other / "config.json").read_text())
    # The same network without the part.
    config.pop("vision_config")
    (other / "config.json").write_text(json.dumps(config))
    words[3] = f"model.path={other}"
    text = estimate(compose(words)).training
    assert whole["weights"] - text["weights"] == width * parameters
    for part in ("gradients", "optimizer"):
        assert whole[part] == text[part]
