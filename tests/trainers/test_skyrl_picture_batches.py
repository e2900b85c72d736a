"""Micro-batches by tokens, which SkyRL packs itself, have the pixels of their own rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.skyrl_pictures import play, update_logprobs
from tests.support.tiny_vision import vision_model
from xp.envs import picture_store

TOLERANCE = 1e-5
SHOWN = (("a", "b"), ("", "c"), ("", ""))
"""Rows of two, one and no pictures."""


def test_a_micro_batch_by_tokens_has_the_pixels_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl.backends.skyrl_train.workers.worker_utils import TokenBasedBatchIterator

    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    model = vision_model("qwen2_vl", tmp_path / "model")
    batch = play(model, tmp_path, SHOWN).batch
    lengths = batch["attention_mask"].sum(-1)
    parts = list(TokenBasedBatchIterator(batch, int(lengths.max()) + 1))
    assert len(parts) > 1
    num_pictures = sorted(len(grid) for part in parts for grid in part["image_grid_thw"])
    assert num_pictures == [0, 0, 1, 1, 2, 2]
    for part in parts:
        logprobs = update_logprobs(model, part, len(part["sequences"]))
        is_policys = part["loss_mask"] > 0
        assert torch.any(is_policys)
        assert (logprobs - part["rollout_logprobs"])[is_policys].abs().max() < TOLERANCE
