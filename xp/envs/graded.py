"""`provider: local`: a task is a row and a Python function scores the answer; no server, no tools.

A grader is the user's own code, so what it raises is infrastructure: the episode is void, never 0.
"""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from hashlib import sha256
from typing import Any, Final, TypeVar

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    EnvUnavailable,
    Message,
    ProtocolError,
    SessionLost,
    Task,
    ToolCrashed,
    ToolResult,
    ToolSpec,
)
from xp.envs.config import EnvConfig
from xp.envs.graders import Conversation, conversations_of
from xp.envs.local_server import source_version
from xp.envs.rows import Rows, checked, load_rows
from xp.errors import ExitCode, XpError

T = TypeVar("T")

NO_TOOLS: Final = "Error: there are no tools here; write the answer itself."


class GradedProvider:
    """See xp.envs.base.Provider.

    Args:
        config: the environment; `grader` or `env_class` scores, `rows` (or the grader's own `rows`) are the tasks.
        environ: not read: a grader runs here, with this process's own.
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        del environ
        self._config = config
        self._grader, self._begin = conversations_of(config)
        self._lock = threading.Lock()
        self._loaded: Rows | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"GradedProvider({self._config.name!r})"

    def version(self) -> str:
        grader = self._config.grader
        code = source_version(grader) if grader else f"skyrl_gym {self._config.env_class}"
        content = json.dumps({split: list(map(dict, rows)) for split, rows in self._rows().items()}, default=str)
        return f"{code}, rows {sha256(content.encode()).hexdigest()[:16]}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._rows())

    def num_tasks(self, split: str) -> int:
        return len(self._split(split))

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        """Raises ValueError for an index outside of the split."""
        rows = self._split(split)
        if wrong := [index for index in indices if not 0 <= index < len(rows)]:
            raise ValueError(f"split {split!r} has rows 0 to {len(rows) - 1}, not {wrong[:5]}")
        return [Task(self._config.name, split, index, rows[index]) for index in indices]

    def listed(self, split: str) -> list[Task]:
        """See xp.envs.base.Lister."""
        return self.tasks(split, range(self.num_tasks(split)))

    def open(self, task: Task) -> GradedSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        rows = self._split(task.split)
        if not 0 <= task.index < len(rows):
            raise ProtocolError(f"task {task.id}: split {task.split!r} has rows 0 to {len(rows) - 1}")
        limits, row = self._config.limits, rows[task.index]
        begun = within(lambda: self._begin(row), limits.create_timeout_s, f"{self!r}: its beginning")
        return GradedSession(begun, limits.call_timeout_s)

    def close(self) -> None:
        self._is_closed = True

    def _rows(self) -> Rows:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Rows:
        if self._config.rows is not None:
            return load_rows(self._config.rows)
        own = getattr(self._grader, "rows", None)
        if own is None:
            raise XpError(
                f"environment {self._config.name}: its grader has no method `rows`; give the tasks with"
                " env.rows=package:file.jsonl or package.module:function",
                ExitCode.CONFIG,
            )
        return checked(own(), f"of {self._config.grader}")

    def _split(self, split: str) -> Sequence[Mapping[str, Any]]:
        rows = self._rows()
        if split not in rows:
            raise ProtocolError(f"{self!r}: there is no split {split!r}, only {', '.join(rows)}")
        return rows[split]


class GradedSession:
    """See xp.envs.base.Session: plain messages go to the grader, there are no tools."""

    def __init__(self, conversation: Conversation, call_timeout_s: float) -> None:
        self._conversation = conversation
        self._call_timeout_s = call_timeout_s
        self._is_closed = False

    def prompt(self) -> list[Message]:
        return list(self._conversation.opening)

    def tools(self) -> tuple[ToolSpec, ...]:
        return ()

    @property
    def takes_answer(self) -> bool:
        return True

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        del name, arguments
        self._check_open()
        return ToolResult(NO_TOOLS, is_call_error=True)

    def answer(self, text: str) -> ToolResult:
        self._check_open()
        said = within(lambda: self._conversation.take(text), self._call_timeout_s, "the grader")
        if said.reward is not None and not math.isfinite(said.reward):
            raise ProtocolError(f"the grader's reward is {said.reward}")
        return said

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._conversation.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionLost("the session is closed")


def within(work: Callable[[], T], limit_s: float, what: str) -> T:
    """Call the user's code on a thread of its own, since nothing else ends one that hangs.

    Raises:
        DeadlineExceeded: it took longer than `limit_s`; its thread is left behind.
        ToolCrashed: it raised.
    """
    done: Future[T] = Future()

    def call() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=call, name="grader", daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError as error:
        if not done.done():
            raise DeadlineExceeded(f"{what} took longer than {limit_s:g} s") from None
        raise ToolCrashed(f"{what} raised TimeoutError: {error}") from error
    except (EnvFault, XpError):
        raise
    except Exception as error:
        place = inspect.trace()[-1]
        raise ToolCrashed(f"{what} raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})") from error
