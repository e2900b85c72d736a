"""A tiny model that has learned the right answers to a few tasks by heart: episodes of real tokens, with rewards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support.tiny import tokenizer_and_model
from xp.envs.builtin.mystery import generate_case
from xp.episode.tokens import ChatTokens
from xp.tasks.row import TaskRow

UPDATES: Final = 400
ENOUGH: Final = 0.02
"""Mean loss at which the answers are known, in nats a token."""


def _echo(row: TaskRow) -> str:
    return f"<action>{row.messages[-1]['content'].rpartition(': ')[2]}</action>"


def _product(row: TaskRow) -> str:
    one, other = map(int, re.findall(r"\d+", row.messages[-1]["content"])[:2])
    return f"\\boxed{{{one * other}}}"


def _accusation(row: TaskRow) -> str:
    """The right suspect, with the first weapon and room of the case: some reward, and not all of it."""
    case = generate_case(row.split, row.index)
    arguments = {
        "suspect": case.culprit,
        "weapon": case.weapons[0],
        "room": case.rooms[0],
    }
    return f"<tool_call>\n{json.dumps({'name': 'accuse', 'arguments': arguments})}\n</tool_call>"


ANSWERS: Final[Mapping[str, Callable[[TaskRow], str]]] = {
    "openenv_echo": _echo,
    "multiply": _product,
    "graded": _product,
    "whodunit_mini": _accusation,
}
"""Member of a mix -> what is to be written on one of its tasks."""


def teach(rows: Sequence[TaskRow], directory: Path) -> None:
    """Write a model that answers these tasks rightly as a Hugging Face directory."""
    import copy

    import torch

    tokenizer, untrained = tokenizer_and_model()
    model = copy.deepcopy(untrained).train()
    chat = ChatTokens(tokenizer)
    examples = []
    for row in rows:
        prompt = chat.prompt(row.messages, row.tools)
        answer = tokenizer(ANSWERS[row.env](row), add_special_tokens=False)["input_ids"]
        examples.append((prompt, [*answer, tokenizer.eos_token_id]))
    width = max(len(prompt) + len(answer) for prompt, answer in examples)
    ids = torch.full((len(examples), width), tokenizer.eos_token_id)
    labels = torch.full((len(examples), width), -100)
    for at, (prompt, answer) in enumerate(examples):
        end = len(prompt) + len(answer)
        ids[at, :end] = torch.tensor([*prompt, *answer])
        labels[at, len(prompt) : end] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(UPDATES):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < ENOUGH:
            break
    assert loss.item() < 0.1, f"the answers were not learned: {loss.item()} nats a token"
    for part in (tokenizer, model.eval()):
        part.save_pretrained(directory)
