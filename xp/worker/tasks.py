"""Loads a stage's tasks: without prompts that are too long for the model, in the order of the training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xp.episode.auto_dialect import resolve
from xp.episode.tokens import ChatTokens
from xp.models.clock import CLOCK, with_date
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule
from xp.worker.publish import check_there
from xp.worker.stage import StageConfig, TrainConfig


def policy_chat(common: StageConfig, model: str | Path, stage: Path, tokenizer: Any = None) -> ChatTokens:
    """Chat of a model; `model.dialect=auto` is resolved by its template.

    Args:
        common: input of the stage.
        model: Hugging Face id or directory.
        stage: the stage's directory.
        tokenizer: the model's tokenizer, if it is loaded already.

    Raises:
        XpError: (RUN_DIR) the model is a published one, and damaged; (PLAN) its template asks for a date that the spec
            does not have.
    """
    from transformers import AutoTokenizer

    check_there(str(model))
    chat = ChatTokens(tokenizer or AutoTokenizer.from_pretrained(model), common.chat)
    with_date(str(chat.tokenizer.chat_template), common.chat.arguments.get(CLOCK))
    resolve(stage, chat)
    return chat


def training_order(
    config: TrainConfig, rows: Sequence[TaskRow], chat: ChatTokens, *, seed: int, max_prompt_tokens: int
) -> list[TaskRow]:
    """The tasks of all rollout steps, in order; raises XpError as `within_limit` does."""
    tasks = within_limit(Path(config.common.tasks), rows, chat, max_prompt_tokens)
    return order_of(config, tasks, seed)


def order_of(config: TrainConfig, rows: Sequence[TaskRow], seed: int) -> list[TaskRow]:
    """The same for tasks whose prompts are short enough."""
    return schedule(rows, config.num_steps * config.prompts_per_step, seed=seed, shuffle=config.shuffle)


def held_out_tasks(common: StageConfig, stage: Path, chat: ChatTokens, max_prompt_tokens: int) -> list[TaskRow]:
    """Held-out tasks with prompts that are short enough; raises XpError as `load_tasks` and `within_limit` do."""
    tasks = Path(common.tasks)
    return within_limit(tasks, load_tasks(tasks, stage, "held_out"), chat, max_prompt_tokens)
