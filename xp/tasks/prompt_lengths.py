"""Prompt lengths for the run's model, for the prepare stage's table, if the tokenizer is available."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from xp.lib.atomic import write_atomically
from xp.lib.models.files import local_directory
from xp.lib.nested import grouped
from xp.tasks.config import Purpose, Reader
from xp.tasks.row import TaskRow, some_rows
from xp.tasks.store import TaskSet

MAX_COUNTED = 2_000
"""Largest number of tasks whose prompts are counted here, spread over the set; trainers count the rest."""
SUFFIX: Final = ".tokens"


@dataclass(frozen=True)
class Lengths:
    """Prompt tokens of the tasks of one environment and purpose that were counted."""

    counted: int
    mean: float
    """Mean length, in tokens."""
    longest: int
    """Length of the longest prompt, in tokens."""
    too_long: float
    """Share of prompts longer than `training.max_prompt_tokens`."""

    @staticmethod
    def of(numbers: Sequence[int], limit: int) -> Lengths:
        """Figures of these lengths, of which those above the limit are too long."""
        too_long = sum(number > limit for number in numbers) / len(numbers)
        return Lengths(len(numbers), fmean(numbers), max(numbers), too_long)


@dataclass(frozen=True)
class PromptLengths:
    """Prompt lengths of a set, or the reason why there are none."""

    groups: Mapping[tuple[str, Purpose], Lengths]
    note: str
    """Sentence below the table."""


def prompt_lengths(task_set: TaskSet, reader: Reader) -> PromptLengths:
    """Counts with the tokenizer on this machine; its faults become a note, since the set is complete already."""
    longest = reader.spec.training.max_prompt_tokens
    limit = f"training.max_prompt_tokens={longest}"
    later = f"prompt tokens are counted when the model is there; training leaves out prompts over {limit}"
    if reader.spec.model.images is not None:
        return PromptLengths({}, f"prompts may have pictures: {later}")
    absent = PromptLengths({}, f"the tokenizer of {reader.place} is not on this machine: {later}")
    directory = local_directory(reader.place, Path(), "tokenizer_config.json") or local_directory(
        reader.place, Path()
    )
    if not (directory or Path(reader.place).is_dir()):
        return absent  # without the seconds that an import of transformers takes
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(directory or reader.place, local_files_only=True)
    except ImportError:
        return PromptLengths({}, f"transformers is not installed here: {later}")
    except (OSError, ValueError):
        return absent
    total = sum(
        count.tasks for purposes in task_set.manifest.counts.values() for count in purposes.values()
    )
    rows = list(some_rows(task_set.table, every=max(1, -(-total // MAX_COUNTED))))
    from xp.episode.tokens import ChatTokens

    chat = ChatTokens(tokenizer, reader.spec.model)
    try:
        lengths = count_tokens(
            task_set.path,
            rows,
            chat.digest(),
            lambda row: len(chat.prompt(row.messages, row.tools)),
        )
    except Exception as error:  # A chat template may raise anything; training reports its fault.
        fault = f"the chat template of {reader.place} renders no prompt ({type(error).__name__})"
        return PromptLengths({}, f"{fault}: {later}")
    which = ""
    if len(rows) < total:
        which = f", of {len(rows)} of {total} tasks, evenly taken"
    note = f"prompt tokens by the tokenizer of {reader.place}{which}; training leaves out prompts over {limit}"
    groups = grouped(((row.env, row.purpose), lengths[row.task_id]) for row in rows)
    return PromptLengths(
        {key: Lengths.of(numbers, longest) for key, numbers in groups.items()}, note
    )


def count_tokens(
    task_set: Path, rows: Sequence[TaskRow], tokenizer: str, count: Callable[[TaskRow], int]
) -> Mapping[str, int]:
    """Tokens of prompts by task id, from the file, or counted and stored there.

    Args:
        task_set: directory of the set.
        rows: rows of the set; all purposes share one file.
        tokenizer: digest of the tokenizer (`ChatTokens.digest`).
        count: returns the length of one row's prompt, tools included.
    """
    file = directory_of(task_set) / f"{tokenizer}.json"
    known = read_counts(file)
    counted = {row.task_id: count(row) for row in rows if row.task_id not in known}
    if counted:
        known |= counted
        try:
            write_atomically(file, json.dumps(known, sort_keys=True))
        except OSError as error:  # a read-only store: they are counted again each time
            print(f"token counts are not kept: {file.parent}: {error.strerror}", flush=True)
    return {row.task_id: known[row.task_id] for row in rows}


def directory_of(task_set: Path) -> Path:
    """Directory of a set's counts, with one file per tokenizer."""
    return task_set.with_name(f"{task_set.name}{SUFFIX}")


def read_counts(file: Path) -> dict[str, int]:
    """Task id -> tokens; empty if the file is absent or damaged, so that they are counted again."""
    try:
        counts: dict[str, int] = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return counts
