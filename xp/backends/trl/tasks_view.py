"""The task set as TRL takes it: a list of prompts whose messages carry the task's id, in xp's own order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.tasks.config import PrepareConfig
from xp.tasks.row import TaskRow
from xp.tasks.store import open_verified
from xp.tasks.token_counts import count_tokens, tokenizer_digest

TASK_ID = "task_id"
"""Extra key of a prompt's first message: TRL hands it to the rollout function untouched, once per episode."""


def load_tasks(directory: Path, stage_dir: Path, purpose: str) -> list[TaskRow]:
    """The rows of a verified set.

    Args:
        directory: of the set.
        stage_dir: holds `prepare.json`, what the set was asked for.
        purpose: `train` or `held_out`.

    Raises:
        XpError: (TASKS) the set is missing, partial, damaged, or of another spec; the message says which field differs.
    """
    expected = PrepareConfig.from_json((stage_dir / "prepare.json").read_text())
    task_set = open_verified(directory, expected)
    rows = list(task_set.rows(purpose))
    if not rows:
        raise XpError(f"{directory} holds no {purpose} tasks; widen env.{purpose} in the spec", ExitCode.TASKS)
    return rows


def prompt_ids(tokenizer: Any, row: TaskRow) -> list[int]:
    """The prompt as the model reads it: opening messages and tools through the chat template."""
    rendered = tokenizer.apply_chat_template(
        [dict(message) for message in row.messages],
        tools=json.loads(row.tools) or None,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
    )
    return list(rendered["input_ids"])


def within_limit(directory: Path, rows: Sequence[TaskRow], tokenizer: Any, max_tokens: int) -> list[TaskRow]:
    """Leave out tasks whose prompt is longer than the limit, and say how many; raises XpError where none is left.

    Args:
        directory: of the task set; the counts are kept beside it.
    """
    digest = tokenizer_digest(tokenizer)
    lengths = count_tokens(directory, rows, digest, lambda row: len(prompt_ids(tokenizer, row)))
    kept = [row for row in rows if lengths[row.task_id] <= max_tokens]
    if not kept:
        raise XpError(
            f"every one of {len(rows)} prompts is longer than training.max_prompt_tokens={max_tokens}"
            f" (the shortest has {min(lengths.values())}); raise it",
            ExitCode.TASKS,
        )
    print(
        f"{len(kept)} of {len(rows)} tasks; prompts of {min(lengths.values())} to {max(lengths.values())} tokens,"
        f" {len(rows) - len(kept)} left out as longer than {max_tokens}",
        flush=True,
    )
    return kept


def trl_rows(order: Sequence[TaskRow]) -> list[dict[str, Any]]:
    """Rows of the `datasets.Dataset`, one a prompt."""
    return [{"prompt": [{**message, TASK_ID: row.task_id} for message in row.messages]} for row in order]
