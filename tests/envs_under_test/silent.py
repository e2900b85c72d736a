"""A provider in memory whose prompts are drawn anew and whose steps are never scored."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

from tests.support.fake_session import FakeSession, steady
from xp.envs.base import Message, Task
from xp.envs.config import EnvConfig


class SilentSession(FakeSession):
    """Begins otherwise each time."""

    def prompt(self) -> list[Message]:
        return [Message(role="user", content=str(random.random()))]


class Silent:
    """A provider whose environment never scores."""

    def __init__(self, config: EnvConfig, environ: object) -> None:
        del config, environ

    def version(self) -> str:
        return "1"

    def splits(self) -> tuple[str, ...]:
        return ("other",)

    def num_tasks(self, split: str) -> int:
        del split
        return 3

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [Task("x", split, index) for index in indices]

    def open(self, task: Task) -> SilentSession:
        del task
        return SilentSession(lambda _, num_calls: steady("look", num_calls))

    def close(self) -> None:
        pass


class Empty(Silent):
    """A provider without tasks; its only split, if any, is named by `variant`."""

    def __init__(self, config: EnvConfig, environ: object) -> None:
        super().__init__(config, environ)
        self._splits = (config.variant,) if config.variant else ()

    def splits(self) -> tuple[str, ...]:
        return self._splits

    def num_tasks(self, split: str) -> int:
        del split
        return 0


class Slow(Silent):
    """The first task opens at once, every other one takes far longer than a check."""

    is_opening = threading.Event()

    def open(self, task: Task) -> SilentSession:
        if task.index:
            self.is_opening.set()
            threading.Event().wait(600.0)
        return super().open(task)
