"""Loads a stage's tasks: without prompts that are too long for the model, in the order of the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from xp.envs.config import Chat
from xp.episode.auto_dialect import resolve
from xp.episode.tokens import ChatTokens
from xp.lib.atomic import write_atomically
from xp.models.clock import CLOCK, with_date
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.tasks.schedule import MAX_BATCHES, schedule
from xp.worker.publish import check_there
from xp.worker.stage import StageConfig, TrainConfig

TASK_ORDER: Final = "task_order.json"


def policy_chat(common: StageConfig, model: str | Path, stage: Path, tokenizer: Any = None) -> ChatTokens:
    """`model_chat` in a stage, in whose directory `model.dialect=auto` is resolved by the model's template."""
    chat = model_chat(model, common.chat, tokenizer)
    resolve(stage, chat)
    return chat


def model_chat(model: str | Path, chat: Chat, tokenizer: Any = None) -> ChatTokens:
    """Tokenizer of a model with the rendering of its dialogues.

    Args:
        model: Hugging Face id or directory.
        chat: the rendering.
        tokenizer: the model's tokenizer, if it is loaded already.

    Raises:
        XpError: (RUN_DIR) the model is a published one, and damaged; (PLAN) its template asks for a date that the spec
            does not have.
    """
    from transformers import AutoTokenizer

    check_there(str(model))
    made = ChatTokens(tokenizer or AutoTokenizer.from_pretrained(model), chat)
    with_date(str(made.tokenizer.chat_template), chat.arguments.get(CLOCK))
    return made


def training_view(config: TrainConfig, rows: Sequence[TaskRow], view: Path, seed: int) -> list[TaskRow]:
    """The rows of a trainer's view of its tasks: those of all rollout steps, in order.

    With dynamic sampling, whose steps draw any number of tasks: each task once, and beside the view a file with the
    order, as numbers of rows.
    """
    order = order_of(config, rows, seed)
    if not config.dynamic_sampling:
        return order
    numbers = {row.task_id: number for number, row in enumerate(rows)}
    write_atomically(view.with_name(TASK_ORDER), json.dumps([numbers[row.task_id] for row in order]))
    return list(rows)


def order_of(config: TrainConfig, rows: Sequence[TaskRow], seed: int) -> list[TaskRow]:
    """The tasks of all rollout steps, in order; with dynamic sampling, as many as the steps may draw."""
    num_batches = config.num_steps * (MAX_BATCHES if config.dynamic_sampling else 1)
    return schedule(rows, num_batches * config.prompts_per_step, seed=seed, shuffle=config.shuffle)


def held_out_tasks(common: StageConfig, stage: Path, chat: ChatTokens, max_prompt_tokens: int) -> list[TaskRow]:
    """Held-out tasks with prompts that are short enough; raises XpError as `load_tasks` and `within_limit` do."""
    tasks = Path(common.tasks)
    return within_limit(tasks, load_tasks(tasks, stage, "held_out"), chat, max_prompt_tokens)
