"""A batch of episodes to fine-tune on, its loss in float64, and a file of dialogues: the same for all trainers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xp.worker.demonstrations import Example

CALL = {"type": "function", "function": {"name": "multiply", "arguments": {"a": 6, "b": 7}}}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "multiply", "description": "", "parameters": {"type": "object"}},
    }
]


def samples() -> list[Example]:
    """Eight episodes of different lengths; the tokens with a loss come in pieces, and are all tokens of the second."""
    rng = np.random.default_rng(0)
    lengths = [5, 9, 12, 6, 20, 7, 3, 15]
    made = [
        Example(
            rng.integers(5, 200, n).tolist(),
            [0, *(rng.random(n - 2) < 0.5).astype(int).tolist(), 1],
        )
        for n in lengths
    ]
    made[1] = Example(made[1].ids, [0] + [1] * (lengths[1] - 1))
    return made


def expected_loss(model: Any, batch: Sequence[Example]) -> tuple[float, float]:
    """Mean of -log p over the masked tokens of the whole batch, and the norm of its gradient."""
    import torch

    total = torch.zeros((), dtype=torch.float64)
    for one in batch:
        logits = model(torch.tensor([one.ids])).logits[0, :-1]
        logps = logits.log_softmax(-1)[range(len(one.ids) - 1), one.ids[1:]]
        total = total - (logps * torch.tensor(one.mask[1:])).sum()
    loss = total / sum(sum(one.mask[1:]) for one in batch)
    loss.backward()
    norm = torch.stack([weight.grad.square().sum() for weight in model.parameters()]).sum().sqrt()
    return float(loss.detach()), float(norm)


def leave_talk(root: Path, num: int) -> Path:
    file = root / "talk.jsonl"
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"6 times 7, {number}?"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "content": "42"},
                {"role": "assistant", "content": "42"},
            ],
            "tools": TOOLS,
        }
        for number in range(num)
    ]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file
