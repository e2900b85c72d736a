"""Pictures under SkyRL: its engine's log-probabilities and those of its own update, over two turns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.skyrl_pictures import play, update_logprobs
from tests.support.tiny_vision import vision_model
from xp.envs import pictures

TOLERANCE = 1e-5
SHOWN = (("a", "b"), ("", "c"), ("", ""))
"""Rows of two, one and no pictures."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(pictures.VARIABLE, str(tmp_path / "pictures"))
    return tmp_path


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_log_probabilities_of_engine_and_update_agree_over_two_turns(
    family: str, store: Path
) -> None:
    model = vision_model(family, store / family)
    played = play(model, store, SHOWN)
    batch = played.batch
    assert [len(grid) for grid in batch["image_grid_thw"]] == [2, 2, 1, 1, 0, 0]
    assert [episode.episode.settle().num_turns for episode in played.episodes] == [2] * 6
    is_policys = batch["loss_mask"] > 0
    assert is_policys.any(-1).all()
    for size in (1, 3, 6):
        logprobs = update_logprobs(model, batch, size)
        gap = (logprobs - batch["rollout_logprobs"])[is_policys].abs().max()
        assert gap < TOLERANCE, size
    # The pixels matter: with those of another row, they differ.
    swapped = batch["pixel_values"]
    batch["pixel_values"] = type(swapped)([torch.rand_like(pixels) for pixels in swapped])
    other = update_logprobs(model, batch, 6)
    differs = (other - batch["rollout_logprobs"]).abs() * is_policys
    assert differs[:2].max() > 100 * TOLERANCE
    assert differs[4:].max() < TOLERANCE
