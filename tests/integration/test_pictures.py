"""Pictures in conversations and task sets: their tokens, the pixels of the engine and those of the model's own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_session import RULES, FakeSession, call
from tests.support.picture_play import SAMPLING
from tests.support.sections import replace
from tests.support.tiny_vision import IMAGES, message, picture, seeing_chat, vision_model
from xp.envs.base import PICTURE_MARK, Task, ToolResult
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of
from xp.episode.episode import Episode
from xp.worker.engines.conversation import Opening
from xp.worker.engines.transformers_engine import over_model
from xp.worker.media import load_network, placeholder_ids
from xp.worker.token_budget import reply_ids


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_model("qwen2_5_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


def test_a_template_that_drops_pictures_of_tools_gets_them_behind_the_result(
    model: Path, store: PictureStore
) -> None:
    chat = seeing_chat(model, store)
    chat.tokenizer.chat_template = DROPPING
    shown = picture(store, "a")
    result = {**message("tool", "Closer: ", shown), "name": "look", "tool_call_id": "call00000"}
    text = chat.tokenizer.decode(chat.reply([result], last_id=None))
    assert "Closer: [image 1, below]" in text
    assert text.count("<|image_pad|>") == chat.pictures.num_tokens(shown["sha256"])  # type: ignore[union-attr]
    assert text.index("below]") < text.index("<|image_pad|>")


def test_a_picture_without_room_becomes_a_text_before_the_engine_is_asked(
    model: Path, store: PictureStore
) -> None:
    from PIL import Image

    chat = seeing_chat(model, store)
    large = store.keep(picture_data(Image.new("RGB", (420, 280), "red")))
    assert chat.pictures is not None
    assert 50 < chat.pictures.num_tokens(large["sha256"]) <= 64
    session = FakeSession(lambda _, __: ToolResult(PICTURE_MARK, pictures=(large,)))
    episode = Episode(Task("fake", "train", 0), lambda: session, replace(RULES, images=IMAGES))
    reply = episode.step(call("move"))
    fitting = reply_ids(chat, episode, reply, 66, chat.end_id)
    assert fitting is not None
    assert "[image left out: no room]" in chat.tokenizer.decode(fitting.ids)
    assert digests_of(fitting.messages) == []
    assert episode.settle().pictures == {"read": 0.0, "left_out": 1.0}
    whole = Episode(Task("fake", "train", 0), lambda: session, replace(RULES, images=IMAGES))
    shown = reply_ids(chat, whole, whole.step(call("move")), 400, chat.end_id)
    assert shown is not None
    assert digests_of(shown.messages) == [large["sha256"]]


def test_a_placeholder_is_not_sampled_though_the_model_wants_nothing_else(
    model: Path, store: PictureStore
) -> None:
    """trl#3847, verl#7038: a sampled placeholder had no pixels."""
    network = load_network(model, torch.float32).eval()
    chat = seeing_chat(model, store)
    wanted = placeholder_ids(network.config)
    assert len(wanted) >= 2

    def want(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        logits[..., wanted] += 50
        return logits

    network.lm_head.register_forward_hook(want)
    prompt = message("user", picture(store, "a"), "How many?")
    delivered: list[Any] = []
    ids = [chat.prompt([prompt], "[]")] * 4
    digests = [digests_of([prompt])] * 4
    opening = Opening(ids, list("abcd"), 4, delivered.append, digests)
    engine = over_model(network, chat, SAMPLING, "seed")(opening)
    for number in range(4):
        engine.begin(number)
    while engine.is_generating:
        engine.step(is_live=True)
    sampled = {token for turn in delivered for token in turn.ids}
    assert sampled
    assert not sampled & set(wanted)


DROPPING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif message['role'] != 'tool' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
