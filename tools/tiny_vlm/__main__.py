"""`make tiny-vlm`: trains the model of `model=tiny_vlm` and puts it into the package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from tools.tiny_model.shipping import ship_model
from tools.tiny_vlm.build import write_model
from tools.tiny_vlm.warm_up import accuracy, train
from xp.lib.digest import file_digest
from xp.worker.tiny_model import VISION_SHIPPED

FAMILY: Final = "qwen2_vl"
TEXT: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 32,
}
VISION: Final = {"width": 48, "depth": 1, "num_heads": 2}
NUM_UPDATES: Final = 900
"""As many as teach it to see."""
WRONG: Final = 0.6
"""Share of the counts that are drawn at random in the last updates: the model sees, and is not sure of what it says."""


def ship(target: Path = VISION_SHIPPED, num_updates: int = NUM_UPDATES) -> float:
    """Trains the model; replaces `target` when it is complete.

    Returns:
        Share of new boards whose number it knows.
    """
    share = 0.0

    def write(directory: Path) -> dict[str, Any]:
        nonlocal share
        write_model(FAMILY, directory, TEXT, VISION)
        share = warm_up(directory, num_updates)
        return {"num_updates": num_updates, "known": share}

    ship_model(target, write)
    return share


def warm_up(directory: Path, num_updates: int) -> float:
    """Trains the model of a directory; returns the share of new boards whose number it knows."""
    import torch
    from transformers import AutoTokenizer

    from xp.episode.picture_reader import load_processor
    from xp.worker.media import load_network

    torch.set_num_threads(1)  # Two are slower, for so few operations at a time.
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    processor = load_processor(directory, tokenizer)
    model = load_network(directory, torch.float32).requires_grad_(True)

    def prompt(question: str) -> str:
        content = [{"type": "image"}, {"type": "text", "text": question}]
        text: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return text

    total: list[Any] = []

    def report(step: int, loss: float) -> None:
        total.append(loss)
        if step % 50 == 49:
            print(f"update {step + 1}: loss {sum(total[-50:]) / 50:.3f}", flush=True)

    train(model, processor, prompt, num_updates, report, wrong=WRONG)
    model.save_pretrained(directory)
    return accuracy(model, processor, prompt, "known", 512)


if __name__ == "__main__":
    known = ship()
    weights = file_digest(VISION_SHIPPED / "model.safetensors")
    print(
        f"{VISION_SHIPPED}: knows {known:.0%}; in xp/worker/tiny_model.py, VISION_PLACE becomes"
        f" models/tiny-vlm-{weights[:12]}"
    )
    sys.exit(0)
