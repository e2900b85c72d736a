"""`provider: local`: a task is a row and a Python function scores the answer; no server, no tools.

A grader is the user's own code: its exceptions count as infrastructure faults, the episode is void, never 0. It runs
on the main thread of a process of limited memory (xp.envs.call_processes), which is ended if a call takes too long.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from xp.envs.base import (
    DeadlineExceeded,
    EnvFault,
    EnvUnavailable,
    Message,
    Task,
    ToolResult,
)
from xp.envs.call_processes import CallProcesses
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.graders import check_answers, grader_of, is_conversation, reads_thinking, rows_of
from xp.envs.hosted import HostedSession
from xp.envs.indexed import IndexedProvider
from xp.envs.local_server import source_version
from xp.envs.messages import ReadPicture
from xp.envs.rows import (
    Rows,
    checked,
    line_of,
    load_rows,
    messages_of,
    name_of,
    picture_paths,
    reader_of,
)
from xp.errors import XpError
from xp.lib.data_files import Row, is_set
from xp.lib.digest import plain, text_digest
from xp.spec.env import EnvLimits

GRADER: Final = "xp.envs.graders"
NO_TOOLS: Final = "Error: there are no tools here; write the answer itself."
TIMED_OUT: Final = "timed_out"
"""Metric of an answer: 1 if its grader did not end within its own limit, so that the answer counts 0."""


class GradedProvider(IndexedProvider):
    """See xp.envs.base.Provider.

    Args:
        config: the environment; `grader` or `env_class` scores, `rows` (or the grader's own `rows`) are the tasks.
        environ: see xp.envs.child_process.
    """

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self._config = config
        self._grader = grader_of(config)
        self._limit_s: float | None = getattr(self._grader, "limit_s", None)
        what = f"the grader {config.grader or config.env_class}"
        self._read = reader_of(config.images, config.rows, environ)
        self._processes = CallProcesses(
            ChildProcess(GRADER, config, environ), config.limits.create_timeout_s, what
        )
        has_steps = is_conversation(self._grader)
        self._session_of = SteppedSession if has_steps else GradedSession
        self._lock = threading.Lock()
        self._loaded: Rows | None = None
        self._is_closed = False

    def version(self) -> str:
        grader = self._config.grader
        if grader:
            code = source_version(grader)
        else:
            code = f"skyrl_gym {self._config.env_class}"
        content = json.dumps(
            {split: list(map(dict, rows)) for split, rows in self._rows().items()}, default=plain
        )
        return f"{code}, rows {text_digest(content)[:16]}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._rows())

    def open(self, task: Task) -> GradedSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        self._check(task)
        return self._session(self._rows()[task.split][task.index])

    def picture_paths(self, task: Task) -> list[str]:
        """See xp.envs.base.PictureNamer; the prompt of a grader with steps is made by its `init`."""
        row = self._rows()[task.split][task.index]
        if self._session_of is GradedSession:
            return picture_paths(row)
        limit_s = self._config.limits.create_timeout_s
        what = f"{self._processes.what} at its beginning"
        paths: list[str] = self._processes.call("picture_paths", dict(row), limit_s, what)
        return paths

    def close(self) -> None:
        self._is_closed = True
        self._processes.close()

    def check_answers(self) -> str | None:
        """See xp.envs.base.AnswerChecker."""

        def grade(text: str, row: Row) -> float | None:
            return self._session(row).answer(text).reward

        within_limit = None if self._limit_s is None else grade
        return check_answers(self._config, self._rows(), self._name, within_limit)

    def _session(self, row: Row) -> GradedSession:
        return self._session_of(
            self._processes,
            row,
            self._config.limits,
            read=self._read,
            reads_thinking=reads_thinking(self._grader, self._config),
            limit_s=self._limit_s,
        )

    def _rows(self) -> Rows:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Rows:
        if self._config.rows is not None:
            self._name = name_of(self._config.rows)
            rows, columns = load_rows(
                self._config.rows, self._config.columns, has_pictures=self._read is not None
            )
            if is_set(self._name):  # The plan reads files, and has shown this line for them.
                print(line_of(self._config.name, rows, columns), file=sys.stderr, flush=True)
        elif (make_rows := rows_of(self._grader, self._config)) is not None:
            self._name = f"of {self._config.grader}"
            rows = checked(make_rows(), self._name, has_pictures=self._read is not None)
        else:
            raise XpError(
                f"environment {self._config.name}: its grader has no method `rows`; give the tasks with"
                " env.rows=./FILE.jsonl or package.module:function"
            )
        return rows

    def _size(self, split: str) -> int:
        return len(self._rows()[split])

    def _specs(self, split: str, indices: Sequence[int]) -> Sequence[Mapping[str, Any]]:
        rows = self._rows()[split]
        return [rows[index] for index in indices]


class GradedSession(HostedSession):
    """See xp.envs.base.Session: a plain message goes to the grader, there are no tools.

    Args:
        processes: processes of the grader.
        row: the task.
        limits: limits of the environment.
        read: reads a picture of the row. None means that it has none.
        reads_thinking: whether the grader reads all that the model wrote.
        limit_s: seconds of a grader that may not end on some answers, which then count 0. None means that an answer
            without an end is a fault.
    """

    takes_answer = True
    _tools = ()

    def __init__(
        self,
        processes: CallProcesses,
        row: Row,
        limits: EnvLimits,
        *,
        read: ReadPicture | None,
        reads_thinking: bool,
        limit_s: float | None,
    ) -> None:
        self._processes = processes
        self._row = dict(row)
        self._limits = limits
        self._read = read
        self.reads_thinking = reads_thinking
        self._limit_s = limit_s
        self._is_closed = False
        self._opening = self._begin()

    def _begin(self) -> list[Message]:
        return messages_of(self._row, self._read)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_open()
        return ToolResult(NO_TOOLS, is_call_error=True)

    def answer(self, text: str) -> ToolResult:
        self._check_open()
        limit_s = self._limits.call_timeout_s
        call = (self._row, text)
        if self._limit_s is None:
            return self._graded(call, limit_s)
        try:
            result = self._graded(call, min(limit_s, self._limit_s))
        except DeadlineExceeded:
            return ToolResult("", 0.0, finished=True, metrics={TIMED_OUT: 1.0})
        return replace(result, metrics={**result.metrics, TIMED_OUT: 0.0})

    def close(self) -> None:
        self._is_closed = True

    def _graded(self, call: tuple[Row, str], limit_s: float) -> ToolResult:
        result: ToolResult = self._processes.call("grade", call, limit_s, self._processes.what)
        return result


class SteppedSession(GradedSession):
    """A conversation with a grader, which has a process until it is closed."""

    def _begin(self) -> list[Message]:
        self._worker = self._processes.take()
        limit_s = self._limits.create_timeout_s
        what = f"{self._processes.what} at its beginning"
        try:
            opening: list[Message] = self._worker.ask("open", self._row, limit_s, what)
        except BaseException:
            self._processes.give(self._worker)
            raise
        return opening

    def answer(self, text: str) -> ToolResult:
        self._check_open()
        limit_s = self._limits.call_timeout_s
        result: ToolResult = self._worker.ask("take", text, limit_s, self._processes.what)
        return result

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if not self._worker.is_gone:
            with suppress(EnvFault, XpError):
                self._worker.ask("close", None, self._limits.call_timeout_s, "the close")
        self._processes.give(self._worker)
