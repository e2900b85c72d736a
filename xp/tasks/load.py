"""Loads a run's tasks for a trainer: from a verified set, without prompts that are too long for the model."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from xp.episode.tokens import ChatTokens, TemplateFault
from xp.errors import ExitCode, XpError
from xp.lib.reading import config_of
from xp.tasks.config import PrepareConfig
from xp.tasks.row import TaskRow
from xp.tasks.store import open_verified
from xp.tasks.template_check import check_chat
from xp.tasks.token_counts import count_tokens
from xp.tasks.unchanged import check_unchanged


def load_tasks(directory: Path, stage_dir: Path, purpose: str) -> list[TaskRow]:
    """The rows of a verified set whose environments still have these tasks.

    Args:
        directory: directory of the set.
        stage_dir: directory with `prepare.json`, the request of the set.
        purpose: `train` or `held_out`.

    Raises:
        XpError: (TASKS) the set is missing, partial, damaged, or of another spec, with the names of differing fields,
            or the environment has other tasks by now; (ENVIRONMENT) the environment does not answer.
    """
    expected = config_of(stage_dir / "prepare.json", PrepareConfig.from_json)
    task_set = open_verified(directory, expected)
    rows = list(task_set.rows(purpose))
    if not rows:
        raise XpError(f"{directory} holds no {purpose} tasks; widen env.{purpose} in the spec", ExitCode.TASKS)
    check_unchanged(directory, expected, rows, os.environ)
    return rows


def within_limit(directory: Path, rows: Sequence[TaskRow], chat: ChatTokens, max_tokens: int) -> list[TaskRow]:
    """Removes tasks whose prompt is too long, and prints their number.

    Args:
        directory: directory of the task set; token counts are stored beside it.
        chat: the policy's tokenizer.
        max_tokens: longest prompt, in tokens.

    Raises:
        XpError: no task is left; or (PLAN) the model's chat template omits tools, which is checked first, or a prompt.
    """
    check_chat(chat, ((row.messages, row.tools) for row in rows))

    def length(row: TaskRow) -> int | None:
        try:
            return chat.prompt_length(row.messages, row.tools, max_tokens)
        except TemplateFault as fault:
            raise XpError(f"task {row.task_id}: {fault}; leave it out, or choose another model", fault.code) from None

    lengths = count_tokens(directory, rows, chat.digest(), length)
    kept = [row for row in rows if lengths.get(row.task_id, math.inf) <= max_tokens]
    if not kept:
        shortest = f"the shortest has {min(lengths.values())}" if lengths else f"all have more than {2 * max_tokens}"
        raise XpError(
            f"every one of {len(rows)} prompts is longer than training.max_prompt_tokens={max_tokens} ({shortest});"
            " raise it",
            ExitCode.TASKS,
        )
    longest = str(max(lengths.values())) if len(lengths) == len(rows) else f"more than {2 * max_tokens}"
    shortest = str(min(lengths.values()))
    sizes = longest if shortest == longest else f"{shortest} to {longest}"
    print(
        f"{len(kept)} of {len(rows)} tasks; prompts of {sizes} tokens,"
        f" {len(rows) - len(kept)} left out as longer than {max_tokens}",
        flush=True,
    )
    return kept
