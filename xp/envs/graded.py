"""`provider: local`: a task is a row and a Python function scores the answer; no server, no tools.

A grader is the user's own code: its exceptions count as infrastructure faults, the episode is void, never 0. It runs
in a separate process (xp.envs.child_process) of limited memory, which is ended if a call takes too long.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import LifoQueue
from typing import Any, Final

from xp.envs.base import DeadlineExceeded, EnvUnavailable, ResponseLost, Task, ToolResult
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.graders import NUM_LIMITED, check_answers, grader_of, reads_thinking, rows_of
from xp.envs.hosted import HostedSession
from xp.envs.indexed import IndexedProvider
from xp.envs.local_server import source_version
from xp.envs.rows import Rows, checked, line_of, load_rows, messages_of, name_of
from xp.errors import XpError
from xp.lib.data_files import is_set
from xp.lib.digest import text_digest
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
        self._processes = [
            ChildProcess(GRADER, config, environ)
            for _ in range(NUM_LIMITED if self._limit_s else 1)
        ]
        self._process = self._processes[0]
        self._free: LifoQueue[ChildProcess] = LifoQueue()
        for process in self._processes:
            self._free.put(process)
        self._lock = threading.Lock()
        self._loaded: Rows | None = None
        self._is_closed = False

    def version(self) -> str:
        grader = self._config.grader
        code = source_version(grader) if grader else f"skyrl_gym {self._config.env_class}"
        content = json.dumps(
            {split: list(map(dict, rows)) for split, rows in self._rows().items()}, default=str
        )
        return f"{code}, rows {text_digest(content)[:16]}"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._rows())

    def open(self, task: Task) -> GradedSession:
        if self._is_closed:
            raise EnvUnavailable(f"{self!r} is closed")
        self._check(task)
        row = self._rows()[task.split][task.index]
        if self._limit_s is not None:
            return self._limited(row)
        limits = self._config.limits
        return GradedSession(
            self._process, row, limits, reads_thinking=reads_thinking(self._grader, self._config)
        )

    def close(self) -> None:
        self._is_closed = True
        for process in self._processes:
            process.close()

    def check_answers(self) -> str | None:
        """See xp.envs.base.AnswerChecker."""
        within_limit = (
            None
            if self._limit_s is None
            else lambda text, row: self._limited(row).answer(text).reward
        )
        return check_answers(self._config, self._rows(), self._name, within_limit)

    def _limited(self, row: Mapping[str, Any]) -> LimitedSession:
        return LimitedSession(self._free, row, self._config.limits, self._limit_s or 0.0)

    def _rows(self) -> Rows:
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> Rows:
        if self._config.rows is not None:
            self._name = name_of(self._config.rows)
            rows, columns = load_rows(self._config.rows, self._config.columns)
            if is_set(self._name):  # The plan reads files, and has shown this line for them.
                print(line_of(self._config.name, rows, columns), file=sys.stderr, flush=True)
        elif (make_rows := rows_of(self._grader, self._config)) is not None:
            self._name = f"of {self._config.grader}"
            rows = checked(make_rows(), self._name)
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
    """See xp.envs.base.Session: plain messages go to the grader, there are no tools.

    Args:
        process: process of the grader.
        row: the task.
        limits: limits of the environment.
        reads_thinking: whether the grader reads all that the model wrote.
    """

    grace_s = 0.0
    takes_answer = True
    _tools = ()

    def __init__(
        self,
        process: ChildProcess,
        row: Mapping[str, Any],
        limits: EnvLimits,
        *,
        reads_thinking: bool,
    ) -> None:
        self._process, self._row, self._limits = process, row, limits
        self.reads_thinking = reads_thinking
        self._is_closed, self._has_answered = False, False
        try:
            self._begin()
        except ResponseLost:
            self._begin()

    def _begin(self) -> None:
        """Opens a conversation. The process may end because of another one, which must not make this one void."""
        self._child, self._number = self._process.child(), self._process.number()
        limit_s, what = self._limits.create_timeout_s, "the grader's beginning"
        self._opening = self._child.ask("open", self._number, dict(self._row), limit_s, what)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_open()
        return ToolResult(NO_TOOLS, is_call_error=True)

    def answer(self, text: str) -> ToolResult:
        try:
            result = self._do("take", text, "the grader")
        except ResponseLost:
            if self._has_answered:
                raise
            self._begin()
            result = self._do("take", text, "the grader")
        self._has_answered = True
        return result


class LimitedSession(GradedSession):
    """A session whose grader may not end on some answers: it has seconds for each, in a process without others.

    Args:
        free: processes without an answer.
        row: the task.
        limits: limits of the environment.
        limit_s: seconds for an answer, without the start of the process.
    """

    def __init__(
        self,
        free: LifoQueue[ChildProcess],
        row: Mapping[str, Any],
        limits: EnvLimits,
        limit_s: float,
    ) -> None:
        self._free, self._row = free, row
        self._limits = limits.model_copy(
            update={"call_timeout_s": min(limit_s, limits.call_timeout_s)}
        )
        self._opening, self.reads_thinking = messages_of(row), False
        self._is_closed, self._has_answered = False, False

    def answer(self, text: str) -> ToolResult:
        self._check_open()
        self._process = self._free.get()
        try:
            self._begin()
            try:
                result = super().answer(text)
            except DeadlineExceeded:
                return ToolResult("", 0.0, finished=True, metrics={TIMED_OUT: 1.0})
            super().close()
            return replace(result, metrics={**result.metrics, TIMED_OUT: 0.0})
        finally:
            self._free.put(self._process)

    def close(self) -> None:
        self._is_closed = True
