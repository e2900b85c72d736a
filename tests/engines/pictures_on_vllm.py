"""Two turns with pictures on the real vLLM and by the model's own forward pass, for tests/engines/test_pictures.py.

python -m tests.engines.pictures_on_vllm FAMILY DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from tests.support.picture_play import two_turns
from tests.support.sections import sampling_of
from tests.support.tiny_vision import IMAGES, VISION, message, picture, seeing_chat
from tools.tiny_vlm.build import write_model
from xp.backends.trl.worker.colocated import ColocatedEngine
from xp.envs.picture_bytes import picture_data
from xp.envs.picture_store import PictureStore
from xp.envs.pictures import digests_of
from xp.episode.sized_pictures import SizedPictures
from xp.worker.engines.conversation import Conversation, Opening
from xp.worker.engines.vllm_pictures import VLLMPictures
from xp.worker.media import load_network, placeholder_ids

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    # vLLM's attention on a CPU has no smaller one.
    "head_dim": 32,
}
SPREAD = 0.05
SAMPLING = sampling_of(200, 4, 200)


def own_logprobs(network: Any, reader: Any, row: Conversation, never: list[int]) -> torch.Tensor:
    """Log-probabilities of the completion by the pixels of xp's processor, without the tokens of pictures."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= reader.inputs(ids, row.pictures)
    with torch.inference_mode():
        logits = network(**inputs).logits[0, :-1]
        logits[:, never] = -torch.inf
    logprobs = logits.log_softmax(-1).gather(1, ids[0, 1:, None])
    return logprobs[-len(row.completion_ids) :, 0]


def largest(gap: torch.Tensor, row: Conversation) -> float:
    return float(gap[torch.tensor(row.mask) > 0].abs().max())


def main(family: str, place: str) -> None:
    """Prints the largest gap of rows of 0, 1, 2 and 3 pictures, and how much other pictures change."""
    from vllm import LLM

    directory = Path(place)
    model = write_model(family, directory / family, TEXT, VISION, spread=SPREAD)
    store = PictureStore(directory / "pictures")
    chat = seeing_chat(model, store)
    network = load_network(model, torch.float32).eval()
    llm = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=512,
        max_num_seqs=4,
        gpu_memory_utilization=0.1,
        logprobs_mode="processed_logprobs",
        limit_mm_per_prompt=IMAGES.vllm_limits,
    )
    one, two, three = (picture(store, name) for name in "abc")
    # Its sides are no multiples of a patch.
    noise = store.keep(picture_data(Image.effect_noise((211, 157), 90).convert("RGB")))
    prompts = [
        message("user", one, "How many?"),
        message("user", "How many?"),
        message("user", noise, two, "How many?"),
        message("user", "Hello."),
    ]
    replies = [
        message("user", "And here? ", noise),
        message("user", three, " and here?"),
        message("user", one, "Again?"),
        message("user", "Well?"),
    ]
    ids = [chat.prompt([prompt], "[]") for prompt in prompts]
    pictures = [digests_of([prompt]) for prompt in prompts]
    names = [str(number) for number in range(len(prompts))]
    opening = Opening(ids, names, len(prompts), lambda _: None, pictures)
    never = placeholder_ids(network.config)
    assert chat.pictures is not None
    engine = ColocatedEngine(
        SimpleNamespace(tensor_parallel_size=1, llm=llm),
        opening,
        chat.end_ids,
        SAMPLING,
        "seed",
        never=never,
        pictures=VLLMPictures(SizedPictures(chat.pictures)),
    )
    two_turns(engine, chat, replies)
    rows = engine.conversations
    own = [own_logprobs(network, chat.pictures, row, never) for row in rows]
    gaps = [
        largest(expected - torch.tensor(row.logprobs), row)
        for expected, row in zip(own, rows, strict=True)
    ]
    other = Conversation(
        rows[0].prompt_ids, rows[0].completion_ids, pictures=list(rows[0].pictures)
    )
    other.pictures[0] = three["sha256"]
    change = own_logprobs(network, chat.pictures, other, never) - own[0]
    found = {
        "gaps": gaps,
        "change": largest(change, rows[0]),
        "pictures": [len(row.pictures) for row in rows],
    }
    print("RESULT", json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
