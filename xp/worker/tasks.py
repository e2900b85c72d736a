"""Loads a stage's tasks: without prompts that are too long for the model, in the order of the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from xp.envs.picture_store import PictureStore
from xp.episode.auto_dialect import resolve
from xp.episode.picture_reader import PictureReader
from xp.episode.tokens import ChatTokens
from xp.lib.atomic import write_atomically
from xp.lib.models.clock import CLOCK, with_date
from xp.spec import Model, RunSpec
from xp.tasks.load import load_tasks, within_limit
from xp.tasks.row import TaskRow
from xp.tasks.schedule import schedule
from xp.worker.publish import check_there
from xp.worker.stage import StageConfig, TrainConfig

TASK_ORDER: Final = "task_order.json"


def policy_chat(
    config: StageConfig, model: str | Path, stage: Path, tokenizer: Any = None
) -> ChatTokens:
    """`model_chat` in a stage, in whose directory `model.dialect=auto` is resolved by the model's template.

    Raises:
        XpError: as `model_chat`; (RUN_DIR) the model is a published one, and damaged.
    """
    check_there(str(model))
    chat = model_chat(model, config.spec, tokenizer)
    resolve(stage, chat)
    return chat


def model_chat(
    model: str | Path, spec: RunSpec, tokenizer: Any = None, store: PictureStore | None = None
) -> ChatTokens:
    """Tokenizer of a model with the rendering of its dialogues; its weights are not read.

    Args:
        model: Hugging Face id or directory.
        spec: the run's spec in a job, with the rendering.
        tokenizer: the model's tokenizer, if it is loaded already.
        store: the pictures. None means those of this process's stage.

    Raises:
        XpError: (PLAN) its template asks for a date that the spec does not have.
    """
    from transformers import AutoTokenizer

    tokenizer = tokenizer or AutoTokenizer.from_pretrained(model)
    chat = ChatTokens(
        tokenizer,
        spec.model,
        keeps_prompts=spec.record_prompts,
        pictures=picture_reader(model, spec.model, tokenizer, store),
    )
    with_date(str(chat.tokenizer.chat_template), chat.arguments.get(CLOCK))
    return chat


def picture_reader(
    model: str | Path, policy: Model, tokenizer: Any, store: PictureStore | None = None
) -> PictureReader | None:
    """The pictures of the stage as a model reads them. None means that model.images is off.

    Args:
        model: Hugging Face id or directory.
        policy: the section of the spec.
        tokenizer: the model's tokenizer.
        store: the pictures. None means those of this process's stage.

    Raises:
        XpError: (PLAN) xp gives this model no pictures.
    """
    if policy.images is None:
        return None
    return PictureReader.load(model, store or PictureStore.of_stage(), policy.images, tokenizer)


def training_view(config: TrainConfig, rows: Sequence[TaskRow], view: Path) -> list[TaskRow]:
    """The rows of a trainer's view of its tasks: those of all rollout steps, in order.

    With dynamic sampling, whose steps draw any number of tasks: each task once, and beside the view a file with the
    order, as numbers of rows. With a curriculum, which draws them: each task once.
    """
    if config.spec.env.has_curriculum:
        return list(rows)
    order = order_of(config, rows)
    if not config.spec.algorithm.dynamic_sampling:
        return order
    numbers = {row.task_id: number for number, row in enumerate(rows)}
    write_atomically(
        view.with_name(TASK_ORDER), json.dumps([numbers[row.task_id] for row in order])
    )
    return list(rows)


def order_of(config: TrainConfig, rows: Sequence[TaskRow]) -> list[TaskRow]:
    """The tasks of all rollout steps, in order; with dynamic sampling, as many as the steps may draw."""
    spec = config.spec
    training = spec.training
    num_rounds = config.num_steps * (
        spec.algorithm.max_sample_batches if spec.algorithm.dynamic_sampling else 1
    )
    return schedule(
        rows, num_rounds * training.prompts_per_round, seed=spec.seed, shuffle=training.shuffle
    )


def held_out_tasks(config: StageConfig, stage: Path, chat: ChatTokens) -> list[TaskRow]:
    """Held-out tasks with prompts that are short enough; raises XpError as `load_tasks` and `within_limit` do."""
    tasks = Path(config.places.tasks)
    return within_limit(
        tasks, load_tasks(tasks, stage, "held_out"), chat, config.spec.training.max_prompt_tokens
    )
