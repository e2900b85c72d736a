"""Loads a run's tasks for a trainer: from a verified set, without prompts that are too long for the model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from xp.envs.base import ProtocolError, Provider, Task
from xp.envs.config import load_provider
from xp.envs.rows import name_of
from xp.episode.tokens import ChatTokens, TemplateFault, TooManyPictures
from xp.errors import ExitCode, XpError
from xp.lib.reading import config_of
from xp.spec.env import PromptSource
from xp.tasks.config import MemberConfig, PrepareConfig, Purpose
from xp.tasks.picture_files import changed_pictures, few
from xp.tasks.prompt_lengths import count_tokens
from xp.tasks.questions import ask, described, entry_of, hash_task
from xp.tasks.row import TaskRow
from xp.tasks.store import open_verified
from xp.tasks.template_check import check_chat

MOST_OPENED: Final = 8
"""Largest number of sessions that are opened to compare prompts."""


def load_tasks(directory: Path, stage_dir: Path, purpose: str) -> list[TaskRow]:
    """The rows of a verified set whose environments still have these tasks.

    Args:
        directory: directory of the set.
        stage_dir: directory with `prepare.json`, the request of the set.
        purpose: `train` or `held_out`.

    Raises:
        XpError: (TASKS) the set is missing or damaged, or the environment has other tasks by now; (ENVIRONMENT) the
            environment does not answer.
    """
    rows = list(open_verified(directory).rows(purpose))
    if not rows:
        raise XpError(
            f"{directory} holds no {purpose} tasks; widen env.{purpose} in the spec", ExitCode.TASKS
        )
    check_unchanged(
        directory, config_of(stage_dir / "prepare.json", PrepareConfig.from_json), rows, os.environ
    )
    return rows


def within_limit(
    directory: Path, rows: Sequence[TaskRow], chat: ChatTokens, max_tokens: int
) -> list[TaskRow]:
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
        except TooManyPictures as fault:
            raise XpError(f"task {row.task_id}: {fault}", fault.code) from None
        except TemplateFault as fault:
            raise XpError(
                f"task {row.task_id}: {fault}; leave it out, or choose another model", fault.code
            ) from None

    lengths = count_tokens(directory, rows, chat.digest(), length)
    fitting = [row for row in rows if lengths.get(row.task_id, math.inf) <= max_tokens]
    if not fitting:
        shortest = min(lengths.values(), default=f"more than {2 * max_tokens}")
        raise XpError(
            f"every one of {len(rows)} prompts is longer than training.max_prompt_tokens={max_tokens} (the shortest has"
            f" {shortest} tokens); raise it",
            ExitCode.TASKS,
        )
    longest = str(max(lengths.values()))
    if len(lengths) < len(rows):
        longest = f"more than {2 * max_tokens}"
    purpose = "training" if rows[0].purpose is Purpose.TRAIN else "held-out"
    left_out = f"{len(rows) - len(fitting)} left out as longer than {max_tokens}"
    print(
        f"{len(fitting)} of {len(rows)} {purpose} tasks; prompts of {min(lengths.values())} to {longest} tokens,"
        f" {left_out}",
        flush=True,
    )
    return fitting


def check_unchanged(
    directory: Path, config: PrepareConfig, rows: Sequence[TaskRow], environ: Mapping[str, str]
) -> None:
    """Compares the rows with the environments' present descriptions of these tasks, and then with their prompts.

    Descriptions may differ while the tasks are the same (an address that is signed anew for each request), so that
    prompts of a few such tasks decide. An environment that the run serves itself is not asked for its tasks (the digest
    of its code is part of the set's key). Rows and providers in this process are, since their code may read files that
    no digest is of. Of a task without a description no change is seen but its absence. Live prompts are not compared.

    Args:
        directory: the task set, for the message.
        config: the request of the set.
        rows: the tasks that will be played.
        environ: variables with the providers' secrets.

    Raises:
        XpError: (TASKS) a task has another prompt or picture, or does not exist any more; (ENVIRONMENT) an environment
            does not answer.
    """
    changed = changed_pictures(directory, config)
    if changed:
        raise XpError(
            f"{directory}: the rows' pictures {few(changed)} were replaced since the tasks were prepared\nput the files"
            " back, or start a new run, whose prepare stage reads them again",
            ExitCode.TASKS,
        )
    for name, member in config.members.items():
        env_rows = [row for row in rows if row.env == name]
        if not env_rows or (member.env.serve is not None and member.env.rows is None):
            continue
        missing: list[TaskRow] = []
        described_anew: list[TaskRow] = []
        with closing(load_provider(member.env, environ)) as provider:
            for split in dict.fromkeys(row.split for row in env_rows):
                size = ask(member, partial(provider.num_tasks, split), is_known=True)
                of_split = [row for row in env_rows if row.split == split]
                missing += [row for row in of_split if row.index >= size]
                there = [row for row in of_split if row.index < size]
                indices = [row.index for row in there]
                tasks = ask(member, partial(provider.tasks, split, indices), is_known=True)
                now = {task.index: hash_task(task) for task in tasks}
                described_anew += [row for row in there if now.get(row.index) != row.task_hash]
            compared: list[TaskRow] = []
            if member.env.prompt is PromptSource.PREPARED:
                every = -(-len(described_anew) // MOST_OPENED) or 1
                compared = described_anew[::every]
            other = missing or [
                row for row in compared if _prompt(member, provider, row) != row.messages
            ]
        if other:
            env = member.env
            source = env.target or (env.rows and name_of(env.rows)) or env.grader
            raise XpError(
                f"environment {name} ({source or env.provider}) has other tasks than those that were prepared:"
                f" {len(missing) + len(described_anew)} of {len(env_rows)} differ, such as {other[0].task_id}\n"
                f"rewards would be of other tasks than the prompts; remove {directory} and start a new run,"
                " whose prepare stage fetches the tasks again\n"
                "if they differ again, the environment draws them anew in each process, by the order of a set or by"
                " random numbers without a seed: start xp with PYTHONHASHSEED=0, or give it a seed",
                ExitCode.TASKS,
            )
        if compared:
            print(
                f"environment {name} describes {len(described_anew)} of {len(env_rows)} tasks differently now; their"
                f" prompts are the same ({len(compared)} compared)",
                flush=True,
            )


def _prompt(member: MemberConfig, provider: Provider, row: TaskRow) -> object:
    """The task's opening messages now, as preparation stores them; None if it has no prompt any more."""
    task = Task(row.env, row.split, row.index)
    prompt, tools = ask(member, partial(described, provider, task), is_known=True)
    try:
        return entry_of(task, row.task_hash, prompt, tools, member).messages
    except (ValueError, ProtocolError):
        return None
