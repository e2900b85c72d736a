"""Families that read pictures: tokens, tensors and log-probabilities against the model's own processor and forward pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support.picture_families import FAMILIES, picture_model
from tests.support.picture_play import TOLERANCE, check_rows, own_logprobs, play
from tests.support.tiny_vision import FAMILIES as QWENS
from tests.support.tiny_vision import message, picture, seeing_chat, vision_model
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.episode.tokens import TemplateFault
from xp.worker.engines.conversation import Conversation
from xp.worker.media import load_network


@pytest.fixture(autouse=True)
def _numbers_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolVLM's processor asks for a package that it needs for videos alone."""
    from transformers.models.smolvlm import processing_smolvlm

    if processing_smolvlm.num2words is None:
        monkeypatch.setattr(processing_smolvlm, "num2words", str)


OF_ANOTHERS_KIND = ("smolvlm", "qwen3_5", "qwen2_vl", "qwen3_vl")
"""Families whose processors do what Idefics 3's or Qwen 2.5-VL's does."""


def cases() -> list[Any]:
    return [
        pytest.param(name, marks=pytest.mark.slow if name in OF_ANOTHERS_KIND else ())
        for name in (*FAMILIES, *QWENS)
    ]


@pytest.fixture(scope="module", params=cases())
def family(request: pytest.FixtureRequest) -> str:
    if request.param in FAMILIES:
        for package in FAMILIES[request.param].needs:
            pytest.importorskip(package)
    return str(request.param)


@pytest.fixture(scope="module")
def model(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = picture_model if family in FAMILIES else vision_model
    return made(family, tmp_path_factory.mktemp(family))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def wide(store: PictureStore) -> Any:
    """A picture of which some processors make several parts."""
    from PIL import Image

    image = Image.linear_gradient("L").resize((160, 64)).convert("RGB")
    return store.keep(picture_data(image))


def test_log_probabilities_are_the_models_own_over_two_turns_with_pictures(
    model: Path, store: PictureStore
) -> None:
    """Rows of 0, 1 and 2 pictures are in one batch; in one of them only the reply has a picture."""
    network = load_network(model, torch.float32).eval()
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    one, two = (picture(store, name) for name in "ab")
    three = wide(store)
    prompts = [
        message("user", one, "How many?"),
        message("user", "How many?"),
        message("user", "How many?"),
    ]
    replies = [
        message("user", "Closer: ", three),
        message("user", two, " turned"),
        message("user", "nothing"),
    ]
    rows = play(network, chat, prompts, replies)
    assert [len(row.pictures) for row in rows] == [2, 1, 0]
    check_rows(network, chat, rows)
    # The pictures matter: another one in the first prompt gives other log-probabilities.
    if chat.pictures.num_tokens(one["sha256"]) == chat.pictures.num_tokens(two["sha256"]):
        other = Conversation(rows[0].prompt_ids, rows[0].completion_ids)
        other.pictures = [two["sha256"], three["sha256"]]
        gap = own_logprobs(network, chat, other) - own_logprobs(network, chat, rows[0])
        assert gap.abs().max() > 100 * TOLERANCE


def test_a_prompt_is_what_the_processor_itself_makes_of_it(
    model: Path, store: PictureStore
) -> None:
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    shown = [wide(store), picture(store, "a")]
    images = [chat.pictures.image(picture["sha256"]) for picture in shown]
    dialogue = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look: "},
                *({"type": "image", "image": image} for image in images),
                {"type": "text", "text": " How many?"},
            ],
        }
    ]
    processor = chat.pictures.processor
    # SmolVLM's asks for its part for videos, which is not there.
    processor.video_processor = SimpleNamespace(num_frames=1, fps=1)
    processor.chat_template = chat.tokenizer.chat_template
    expected = processor.apply_chat_template(
        dialogue, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    ids = chat.prompt([message("user", "Look: ", *shown, " How many?")], "[]")
    assert ids == list(expected["input_ids"][0])
    num_features = sum(chat.pictures.num_tokens(picture["sha256"]) for picture in shown)
    assert ids.count(chat.pictures.placeholder_id) == num_features


def test_a_text_that_stands_for_a_picture_is_refused(model: Path, store: PictureStore) -> None:
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    marks = chat.tokenizer.convert_ids_to_tokens(list(chat.pictures.form.special_ids))
    assert chat.pictures.processor.image_token in {*marks}
    for mark in marks:
        with pytest.raises(TemplateFault, match="stands for an image"):
            chat.prompt([message("user", f"What is {mark}?")], "[]")


def test_a_sampled_placeholder_or_a_dropped_picture_is_a_fault(
    model: Path, store: PictureStore
) -> None:
    chat = seeing_chat(model, store)
    assert chat.pictures is not None
    shown = picture(store, "a")
    ids = chat.prompt([message("user", shown, "How many?")], "[]")
    reader = chat.pictures
    assert reader.fault(ids, [shown["sha256"]]) is None
    assert "placeholders of images" in str(
        reader.fault([*ids, reader.placeholder_id], [shown["sha256"]])
    )
    assert "placeholders of images" in str(reader.fault(ids, []))
