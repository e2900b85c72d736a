"""Dialogues with pictures for a fine-tuning: a file of them, and the loss by the model's own forward pass."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.picture_play import own_inputs
from xp.envs.builtin.shapes_mini import drawn, puzzle
from xp.episode.picture_reader import PictureReader
from xp.worker.demonstrations import Example

LOOK: Final = {"type": "function", "function": {"name": "look", "arguments": {"at": "left"}}}
TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": "look", "description": "", "parameters": {"type": "object"}},
    }
]


def board(name: str) -> bytes:
    """A picture's bytes."""
    return drawn(puzzle(name)[0])


def uri(name: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(board(name)).decode()}"


def part(name: str) -> dict[str, Any]:
    """A picture as a part of a message."""
    return {"type": "image_url", "image_url": {"url": uri(name)}}


def talk(number: int) -> dict[str, Any]:
    """A row: by its number with no picture, one in a column, one in a tool's result, or two of them."""
    question: Any = f"Count, {number}."
    result: Any = "nothing"
    row: dict[str, Any] = {"tools": TOOLS}
    if number % 4 == 1:
        row["images"] = [uri(f"q{number}")]
        question = f"Count <image> {number}."
    if number % 4 == 3:
        question = [{"type": "text", "text": question}, part(f"q{number}")]
    if number % 4 >= 2:
        result = [{"type": "text", "text": "Here: "}, part(f"r{number}")]
    row["messages"] = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [LOOK]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": f"{number} red"},
    ]
    return row


def leave_talk(root: Path, num: int) -> Path:
    """A file of rows with 0, 1, 1, 2 pictures, and so on."""
    file = root / "talk.jsonl"
    file.write_text("".join(f"{json.dumps(talk(number))}\n" for number in range(num)))
    return file


def own_loss(model: Any, batch: Sequence[Example], reader: PictureReader) -> tuple[float, float]:
    """Mean of -log p over the masked tokens of all episodes by the model's own forward pass on each, and the norm of
    the gradient of the text network."""
    import torch

    total = torch.zeros((), dtype=torch.float64)
    for example in batch:
        ids = torch.tensor([example.ids])
        inputs = own_inputs(model, reader, ids, example.pictures)
        logits = model(**inputs).logits[0, :-1].double()
        logps = logits.log_softmax(-1)[range(len(example.ids) - 1), example.ids[1:]]
        total = total - (logps * torch.tensor(example.mask[1:])).sum()
    loss = total / sum(sum(example.mask[1:]) for example in batch)
    model.zero_grad()
    loss.backward()
    squares = [
        weight.grad.square().sum() for weight in model.parameters() if weight.grad is not None
    ]
    return float(loss.detach()), float(torch.stack(squares).sum().sqrt())
