"""Rows and scores of reasoning-gym, in a Python that has it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from importlib.metadata import version
from typing import Any, Final

import reasoning_gym
from reasoning_gym.composite import DatasetSpec
from reasoning_gym.factory import CURRICULA, DATASETS, create_curriculum
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from xp.envs.base import Message, ProtocolError, SessionLost, Task, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.errors import XpError, nearest
from xp.lib.digest import digest_of

TEST_OFFSET: Final = 1_000_000_000
"""Difference between the seeds of test and training tasks; a task's seed is its dataset's plus its index."""
NO_TOOLS: Final = "Error: there are no tools here; write the answer itself."


class ReasoningGymTasks:
    """See xp.envs.base.Provider; `options` are those of xp.contrib.reasoning_gym.provider."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._name = config.name
        self._options = config.options
        _check(config.name, config.options)
        options = config.options
        seed = options["seed"]
        self._splits = {
            "train": _composite(config, seed, options["num_train"]),
            "test": _composite(config, seed + TEST_OFFSET, options["num_test"]),
        }
        self._lock = threading.Lock()
        self._cached = lru_cache(maxsize=4096)(self._draw)

    def version(self) -> str:
        return f"reasoning-gym {version('reasoning-gym')}, options {digest_of(dict(self._options))[:16]}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def num_tasks(self, split: str) -> int:
        return len(self._dataset(split))

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [
            Task(self._name, split, index, _spec(self.entry(split, index))) for index in indices
        ]

    def entry(self, split: str, index: int) -> dict[str, Any]:
        """The package's entry of a task; the same seed gives the same entry."""
        with self._lock:  # Some datasets share random state.
            return self._cached(split, index)

    def open(self, task: Task) -> ReasoningGymSession:
        entry = self.entry(task.split, task.index)
        dataset = self._dataset(task.split)
        system = self._options["prompt"]
        if system is None:
            opening = []
        else:
            opening = [Message(role="system", content=SYSTEM_PROMPTS[system])]
        opening.append(Message(role="user", content=entry["question"]))
        return ReasoningGymSession(dataset, entry, opening, self._options["answer"] == "tagged")

    def close(self) -> None:
        """Does nothing: there are no resources."""

    def _draw(self, split: str, index: int) -> dict[str, Any]:
        entry: dict[str, Any] = self._dataset(split)[index]
        return entry

    def _dataset(self, split: str) -> Any:
        if split not in self._splits:
            raise ProtocolError(f"there is no split {split!r}, only {', '.join(self._splits)}")
        return self._splits[split]


class ReasoningGymSession:
    """One question; see xp.envs.base.Session."""

    takes_answer = True

    def __init__(
        self, dataset: Any, entry: dict[str, Any], opening: list[Message], is_tagged: bool
    ) -> None:
        self._dataset = dataset
        self._entry = entry
        self._opening = opening
        self._is_tagged = is_tagged
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return self._opening

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_open()
        return ToolResult(NO_TOOLS, is_call_error=True)

    def answer(self, text: str) -> ToolResult:
        self._check_open()
        if self._is_tagged:
            answer = extract_answer(text)
        else:
            answer = text.strip()
        return ToolResult("", float(self._dataset.score_answer(answer, self._entry)), finished=True)

    def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")


def _check(env: str, options: Mapping[str, Any]) -> None:
    for name in options["dataset"]:
        if name not in DATASETS or name == "composite":
            known = sorted(set(DATASETS) - {"composite"})
            raise XpError(
                f"env {env}: options.dataset: {name!r} is not a dataset of reasoning-gym {version('reasoning-gym')}"
                f"{nearest(name, known)}; there are: {', '.join(known)}"
            )
        if options["level"] is not None and name not in CURRICULA:
            raise XpError(f"env {env}: options.level: dataset {name} has no curriculum; set config")
    if options["prompt"] is not None and options["prompt"] not in SYSTEM_PROMPTS:
        offered = ", ".join(SYSTEM_PROMPTS)
        raise XpError(
            f"env {env}: options.prompt={options['prompt']}: there are {offered}, and null"
        )


def _composite(config: EnvConfig, seed: int, size: int) -> Any:
    """The package's mixture of one or more datasets; raises XpError if a dataset refuses its configuration."""
    options = config.options
    members = [
        DatasetSpec(name, options["weights"].get(name, 1.0), _fields(options, name))
        for name in options["dataset"]
    ]
    try:
        return reasoning_gym.create_dataset("composite", seed=seed, size=size, datasets=members)
    except (AssertionError, TypeError, ValueError) as error:
        raise XpError(f"env {config.name}: reasoning-gym refuses the options: {error}") from error


def _fields(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A dataset's configuration: the curriculum's level, overridden by given fields."""
    written = options["config"].get(name, {})
    if options["level"] is None:
        return dict(written)
    curriculum = create_curriculum(name)
    curriculum.set_global_level(options["level"])
    levelled: dict[str, Any] = asdict(curriculum.generate_configuration())
    return {
        field: value for field, value in levelled.items() if field not in ("seed", "size")
    } | dict(written)


def _spec(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an entry that identifies the task; other metadata may not be JSON."""
    return {
        "dataset": entry["metadata"]["source_dataset"],
        "question": entry["question"],
        "answer": None if entry["answer"] is None else str(entry["answer"]),
    }
