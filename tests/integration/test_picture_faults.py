"""Faults that users of other frameworks reported about pictures, one each, on xp's own code and a network with eyes.

A picture that a template drops from a tool's result, pixels of another row, and tokens over two turns are in
test_pictures.py; pixels in the updates of TRL and SkyRL in tests/trainers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.picture_play import SAMPLING, own_logprobs, play
from tests.support.tiny_vision import message, picture, seeing_chat, vision_model
from xp.envs.base import Message
from xp.envs.pictures import PictureStore, digests_of
from xp.episode.tokens import ChatTokens
from xp.worker.engines.conversation import Conversation, Opening
from xp.worker.engines.in_process import over_model
from xp.worker.media import load_network, placeholder_ids

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one family: its positions have three dimensions; test_picture_families.py plays every family."""
    return vision_model("qwen3_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture
def store(tmp_path: Path) -> PictureStore:
    return PictureStore(tmp_path / "pictures")


FORGETFUL = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}"
    "{{ message['content'].split('</think>')[-1] if not loop.last else message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_tokens_are_appended_though_a_template_drops_thoughts(
    model: Path, store: PictureStore
) -> None:
    """SkyRL#2075: the dialogue was rendered again, and the new tokens were cut at an offset of the old ones."""
    chat = seeing_chat(model, store)
    chat.tokenizer.chat_template = FORGETFUL
    first = picture(store, "a")
    second = picture(store, "b")
    prompt = message("user", first, "How many?")
    said = "<think>Two circles, or three?</think>3"
    ids = chat.prompt([prompt], "[]")
    written = chat.tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False)
    reply = chat.reply([message("user", second, "And now?")], last_id=written[-1])
    row = Conversation([*ids])
    row.append_policy_tokens(written, [0.0] * len(written))
    row.append_env_tokens(reply)
    assert [*row.prompt_ids, *row.completion_ids] == [*ids, *written, *reply]
    text = chat.tokenizer.decode(row.completion_ids)
    assert text.startswith(said)
    assert "And now?" in text
    assert chat.pictures is not None
    digests = [first["sha256"], second["sha256"]]
    assert chat.pictures.fault([*row.prompt_ids, *row.completion_ids], digests) is None
    network = load_network(model, torch.float32).eval()
    row.pictures = digests
    assert own_logprobs(network, chat, row).isfinite().all()


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


def without_types(network: Any, chat: ChatTokens, row: Conversation) -> torch.Tensor:
    """Log-probabilities of the completion with the positions of a text."""
    assert chat.pictures is not None
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    positions = torch.arange(ids.shape[1]).expand(3, 1, -1)
    inputs = chat.pictures.inputs(ids, row.pictures)
    with torch.inference_mode():
        logits = network(input_ids=ids, position_ids=positions, **inputs).logits[0, :-1]
    logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
    return logprobs[-len(row.completion_ids) :, 0]


def test_positions_of_a_second_picture_are_those_of_the_whole_dialogue(
    model: Path, store: PictureStore
) -> None:
    """trl#6401, xtuner#2097: positions in three dimensions went on wrongly after a picture's turn."""
    network = load_network(model, torch.float32).eval()
    chat = seeing_chat(model, store)
    look = {"name": "look", "tool_call_id": "call00000"}
    prompts = [message("user", picture(store, "a"), "How many?")]
    reply = Message({**message("tool", "Closer: ", picture(store, "b")), **look})  # type: ignore[typeddict-item]
    (row,) = play(network, chat, prompts, [reply])
    is_policys = torch.tensor(row.mask) > 0
    engines = torch.tensor(row.logprobs)[is_policys]
    whole = own_logprobs(network, chat, row)[is_policys]
    assert (whole - engines).abs().max() < TOLERANCE
    as_text = without_types(network, chat, row)[is_policys]
    assert (as_text - engines).abs().max() > 10 * TOLERANCE
