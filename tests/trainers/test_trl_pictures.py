"""Trainings with pictures on TRL: the pixels of the update are those of the engine, and records have digests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

pytest.importorskip("trl")

from tests.support.picture_trainings import SMALL, TWO_TURNS, steps_of
from tests.support.stages_here import stages_here as stages_here
from tests.support.tiny_vision import vision_model
from xp.__main__ import main
from xp.envs.picture_store import PictureStore


@pytest.mark.usefixtures("stages_here")
@pytest.mark.parametrize("family", [pytest.param("qwen2_vl", marks=pytest.mark.slow), "qwen3_vl"])
def test_the_updates_log_probabilities_are_the_engines_with_a_picture_in_each_turn(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts have 0, 1 and 2 pictures, so that rows of a micro-batch have 1, 2 and 3."""
    monkeypatch.chdir(tmp_path)
    model = vision_model(family, tmp_path / "model", spread=0.08)
    outputs = tmp_path / "outputs"
    words = (
        *TWO_TURNS,
        *SMALL,
        "model=hf",
        f"model.path={model}",
        "model.dtype=float32",
        "model.images=true",
    )
    assert main([*words, f"outputs={outputs}"]) == 0
    steps = steps_of(outputs)
    assert len(steps) == 2
    for step in steps:
        assert step["episodes/void"] == 0.0
        assert step["environment/turns"] == 2.0
        assert step["training/logprob_gap"] < 1e-5
        assert 1.0 < step["pictures/read"] < 3.0
        assert step["pictures/left_out"] == 0.0
        assert math.isfinite(step["training/grad_norm"])
    (run,) = (outputs / "runs").iterdir()
    check_records(run, outputs)
    check_published(run / "model", model)


def check_records(run: Path, outputs: Path) -> None:
    """No record has bytes of a picture; the store has each picture of a record once."""
    store = PictureStore(outputs / "pictures")
    used = set()
    for file in run.glob("attempt_*/*/trajectories/*.jsonl"):
        for line in file.read_text().splitlines():
            assert "base64" not in line
            for message in json.loads(line).get("messages", ()):
                used |= {picture["sha256"] for picture in message.get("pictures", ())}
    assert len(used) > 3
    for digest in used:
        assert store.data(digest)


def check_published(published: Path, start: Path) -> None:
    """The vision part is the start's byte for byte, and the processor is there."""
    from safetensors.torch import load_file

    before, after = (load_file(place / "model.safetensors") for place in (start, published))
    vision = [name for name in before if "visual" in name]
    assert vision
    assert all(before[name].equal(after[name]) for name in vision)
    assert any(not before[name].equal(after[name]) for name in set(before) - set(vision))
    assert (published / "preprocessor_config.json").is_file()
