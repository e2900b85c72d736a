"""Supervised warm-up on boards of shapes: the model learns to see, and to count some of what it sees."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from xp.envs.builtin.shapes_mini import COLOURS, MOST, SHAPES, drawn, puzzle

BATCH: Final = 64
RATE: Final = 3e-3
RAMP: Final = 50
"""Updates over which the rate rises."""
LAST: Final = 0.85
"""Share of the updates before the last ones."""
LIST: Final = "List them."
KINDS: Final = (None, *((colour, shape) for colour in COLOURS for shape in SHAPES))
"""What a place may have; a list has the number of each in this order."""


def train(
    model: Any,
    processor: Any,
    chat_prompt: Any,
    num_updates: int,
    report: Any,
    *,
    wrong: float = 0.0,
) -> None:
    """Trains all weights on questions about boards that no environment has.

    Half of the questions ask for a list of the board, so that the part for pictures learns from each place.

    Args:
        model: the network.
        processor: its processor.
        chat_prompt: function from a question to the prompt's text.
        num_updates: number of updates.
        report: receives the number of each update and its loss.
        wrong: share of counts that are drawn at random in the last updates, so that the model stays unsure.
    """
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)
    draw = random.Random(1)
    for step in range(num_updates):
        rows = [puzzle(f"warm up/{step}/{number}") for number in range(BATCH)]
        factor = min(1.0, (step + 1) / RAMP) * max(0.05, 1 - step / num_updates)
        for group in optimizer.param_groups:
            group["lr"] = RATE * factor
        half = BATCH // 2
        share = wrong if step >= LAST * num_updates else 0.0
        counts = [
            draw.randint(0, MOST) if draw.random() < share else count for *_, count in rows[half:]
        ]
        lists = ["".join(str(KINDS.index(place)) for place in board) for board, *_ in rows[:half]]
        loss = loss_of(model, processor, [chat_prompt(LIST)] * half, rows[:half], lists)
        asked = [chat_prompt(question(row)) for row in rows[half:]]
        loss = loss + loss_of(model, processor, asked, rows[half:], list(map(str, counts)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        report(step, float(loss.detach()))


def question(row: Any) -> str:
    _, colour, shape, _ = row
    return f"How many {colour} {shape}s?"


def loss_of(
    model: Any, processor: Any, prompts: Sequence[str], rows: Sequence[Any], answers: Sequence[str]
) -> Any:
    """Mean loss of the answers' tokens, of which all have the same number."""
    from torch.nn.functional import cross_entropy

    texts = [f"{prompt}{answer}<|im_end|>" for prompt, answer in zip(prompts, answers, strict=True)]
    inputs = batch_of(processor, texts, rows)
    size = len(answers[0]) + 1
    logits = model(**inputs, use_cache=False, logits_to_keep=size + 1).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), inputs["input_ids"][:, -size:].flatten())


def batch_of(processor: Any, texts: Sequence[str], rows: Sequence[Any]) -> dict[str, Any]:
    """The model's inputs, padded on the left."""
    import io

    import torch
    from PIL import Image

    images = [Image.open(io.BytesIO(drawn(board))).convert("RGB") for board, *_ in rows]
    made = processor(
        text=list(texts), images=[[image] for image in images], add_special_tokens=False
    )
    width = max(map(len, made["input_ids"]))
    pad = processor.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in made["input_ids"]])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in made["input_ids"]])
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == processor.image_token_id).long(),
        "pixel_values": torch.as_tensor(made["pixel_values"]),
        "image_grid_thw": torch.as_tensor(made["image_grid_thw"]),
    }


def accuracy(model: Any, processor: Any, chat_prompt: Any, name: str, number: int = 256) -> float:
    """Share of boards whose number has the greatest logit."""
    import torch

    rows = [puzzle(f"{name}/{index}") for index in range(number)]
    with torch.inference_mode():
        prompts = [chat_prompt(question(row)) for row in rows]
        logits = model(**batch_of(processor, prompts, rows)).logits[:, -1]
    texts = [processor.tokenizer.decode([token]) for token in logits.argmax(-1).tolist()]
    matches: int = sum(text == str(row[3]) for text, row in zip(texts, rows, strict=True))
    return matches / number
