"""What SkyRL cannot do with pictures, shown by its own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("skyrl", reason="SkyRL is not in this environment: make test-skyrl")
pytest.importorskip("PIL")

from tests.support.picture_families import picture_model
from tests.support.skyrl_pictures import play
from tests.support.tiny_vision import picture, seeing_chat, vision_model
from xp.backends.skyrl.worker.pictures import SkyRLPictures
from xp.envs import picture_store
from xp.envs.picture_store import PictureStore
from xp.errors import XpError


def test_a_picture_needs_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SkyRL's batch refuses pixels without one, and its model gives Gemma 3 no types of tokens, so that the numbers are
    others than the model's own."""
    from skyrl.backends.skyrl_train.training_batch import TensorList
    from skyrl.backends.skyrl_train.workers.model_wrapper import HFModelWrapper

    monkeypatch.setenv(picture_store.VARIABLE, str(tmp_path / "pictures"))
    played = play(vision_model("qwen2_vl", tmp_path / "qwen"), tmp_path, [("a", "b")], joins=False)
    output = {**played.output, "image_grid_thw": None}
    with pytest.raises(AssertionError, match="Both pixel_values and image_grid_thw must exist"):
        played.trainer.convert_to_training_input(output, [*"aa"])

    model = picture_model("gemma3", tmp_path / "gemma3")
    store = PictureStore(tmp_path / "pictures")
    reader = seeing_chat(model, store).pictures
    assert reader is not None
    shown = [picture(store, "a")["sha256"]]
    ids = torch.tensor([[*reader.ids(reader.processor.image_token, shown), 40, 41, 42]])
    wrapper = HFModelWrapper(str(model), use_flash_attention_2=False, bf16=False)
    pixels = reader.pixels(shown)["pixel_values"]
    with torch.no_grad():
        skyrls = wrapper(ids, 3, torch.ones_like(ids), pixel_values=TensorList([pixels]))
        logits = wrapper.model(input_ids=ids, **reader.inputs(ids, shown)).logits
    logprobs = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[:, -3:, 0]
    assert (skyrls - logprobs).abs().max() > 1e-3
    with pytest.raises(XpError, match="SkyRL's batches have pixel_values and image_grid_thw"):
        SkyRLPictures(reader, None, "model")
