"""The memory of pictures in an update: the plan's formula against torch's own peak, and what the plan counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.support.cases import few
from tests.support.tiny_vision import FAMILIES, TEXT, picture
from tools.benchmarks.memory_points import peak
from tools.tiny_vlm.build import write_model
from xp.composition import compose
from xp.envs.picture_store import PictureStore
from xp.lib.models.vision import VisionShape, vision_shape
from xp.planning.memory.estimate import estimate
from xp.planning.memory.fit import memory_lines
from xp.planning.memory.pictures import PictureBatch, picture_bytes, shown_tokens
from xp.worker.media import load_network, text_layers
from xp.worker.network import free_media_inputs

VISION = {"width": 256, "depth": 4, "num_heads": 4}
SIDE = 24
"""Patches of a picture in each direction."""
NUM_PICTURES = 2
NUM_TEXT = 8
"""Tokens of text in the batch."""


@pytest.fixture(scope="module", params=few(FAMILIES, 1))
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(request.param, tmp_path_factory.mktemp(request.param), TEXT, VISION)


def shape_in(start: Path) -> VisionShape:
    shape = vision_shape(json.loads((start / "config.json").read_text()))
    assert shape is not None
    return shape


def inputs_of(model: Any, shape: VisionShape) -> dict[str, Any]:
    """A row with pictures."""
    num_patches = NUM_PICTURES * SIDE**2
    seen = [model.config.image_token_id] * (SIDE // shape.merge) ** 2
    ids = torch.tensor([[1, *seen, 2, *seen, *([3] * NUM_TEXT)]])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == model.config.image_token_id).long(),
        "pixel_values": torch.randn(num_patches, shape.values),
        "image_grid_thw": torch.tensor([[1, SIDE, SIDE]] * NUM_PICTURES),
    }


def measured(model: Any, shape: VisionShape) -> float:
    """Bytes of a second forward and backward pass."""
    inputs = inputs_of(model, shape)

    def step() -> None:
        model(**inputs, logits_to_keep=1, use_cache=False).logits.sum().backward()

    step()
    return float(peak(step))


def expected(model: Any, shape: VisionShape, *, is_trained: bool, is_checkpointed: bool) -> float:
    """The plan's bytes for this batch, without the pixels, which are there before."""
    tokens = float(NUM_PICTURES * SIDE**2 // shape.merge**2)
    return picture_bytes(
        shape,
        PictureBatch(tokens, 0.0),
        hidden=model.config.text_config.hidden_size,
        width=4,
        later=0.0,
        is_trained=is_trained,
        is_checkpointed=is_checkpointed,
    )


@pytest.mark.parametrize(("is_trained", "is_checkpointed"), [(False, False), (True, True)])
def test_the_peak_of_a_forward_and_backward_pass_is_the_plans(
    start: Path, is_trained: bool, is_checkpointed: bool
) -> None:
    """The text network is small, so that the vision part makes the peak."""
    shape = shape_in(start)
    assert (shape.depth, shape.width) == (VISION["depth"], VISION["width"])
    model = load_network(start, torch.float32).train()
    if is_trained:
        model.requires_grad_(True)
    free_media_inputs(model)
    if is_checkpointed:
        model.gradient_checkpointing_enable()
    planned = expected(model, shape, is_trained=is_trained, is_checkpointed=is_checkpointed)
    ratio = planned / measured(model, shape)
    print(f"{start.name}: trained {is_trained}, checkpointing {is_checkpointed}: {ratio:.2f}")
    assert 0.95 < ratio < 1.35


def test_a_frozen_part_is_not_passed_backward_for_adapters_or_checkpointing(start: Path) -> None:
    from peft import LoraConfig, get_peft_model

    shape = shape_in(start)
    model = load_network(start, torch.float32).train()
    layers = text_layers(model, None)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=layers))
    # As trainers do, before and after.
    adapted.enable_input_require_grads()
    free_media_inputs(adapted)
    adapted.gradient_checkpointing_enable()
    inputs = inputs_of(model, shape)
    seen = []
    hook = model.model.visual.register_forward_hook(lambda *call: seen.append(call[-1]))
    model(**inputs, logits_to_keep=1, use_cache=False).logits.sum().backward()
    hook.remove()
    (output,) = seen
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    assert tensors
    assert not any(tensor.requires_grad for tensor in tensors)
    adapters = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert any(weight.grad is not None and weight.grad.any() for weight in adapters)


WORDS = ("env=shapes_mini", "hardware=a100x2", "model=hf", "model.dtype=bfloat16")


def test_a_plan_counts_pictures_and_fewer_or_smaller_ones_need_less(start: Path) -> None:
    words = [*WORDS, f"model.path={start}", "training.max_response_tokens=8192"]

    def pictures(*more: str) -> float:
        return estimate(compose([*words, *more])).training.get("pictures", 0.0)

    few = pictures("model.images={max_pixels: 100352, per_episode: 2}")
    many = pictures("model.images={max_pixels: 100352, per_episode: 4}")
    large = pictures("model.images={max_pixels: 200704, per_episode: 4}")
    assert pictures() == 0.0
    assert 0 < few < many < large
    # No more tokens than an episode may have.
    most = pictures("model.images={max_pixels: 20070400, per_episode: 400}")
    assert most == pictures("model.images={max_pixels: 20070400, per_episode: 800}")
    lines = memory_lines(compose([*words, "model.images=true"]))
    assert any("pictures" in line for line in lines)


def test_tokens_of_pictures_in_a_prepared_prompt_are_those_of_the_processor(
    start: Path, tmp_path: Path
) -> None:
    from tests.support.tiny_vision import message, seeing_chat

    store = PictureStore(tmp_path / "pictures")
    chat = seeing_chat(start, store)
    shown = [picture(store, name) for name in "ab"]
    assert chat.pictures is not None
    counted = sum(chat.pictures.num_tokens(one["sha256"]) for one in shown)
    prompt = message("user", *shown, "How many?")
    assert shown_tokens([prompt], shape_in(start), 200_704) == counted
