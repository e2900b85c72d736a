"""The child process in which a package's environments run; its parent is a xp.envs.packages.hosted.HostedProvider."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from xp.envs.base import Provider, Session, SessionLost, Task, ToolResult
from xp.envs.config import EnvConfig
from xp.envs.desk import serve
from xp.load import load_object


class HostClerk:
    """Holds a provider and its sessions; see xp.envs.desk."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._sessions: dict[int, Session] = {}
        self._provider: Provider

    def start(self, _: int, hosted: str) -> str | None:
        """Make the provider `module:Class`; gives the name of a module that this Python lacks."""
        try:
            self._provider = load_object(hosted)(self._config, os.environ)
        except ModuleNotFoundError as error:
            return error.name or str(error)
        return None

    def version(self, _: int, __: None) -> str:
        return self._provider.version()

    def sizes(self, _: int, __: None) -> dict[str, int]:
        return {split: self._provider.num_tasks(split) for split in self._provider.splits()}

    def specs(self, _: int, wanted: tuple[str, Sequence[int]]) -> list[dict[str, Any]]:
        return [dict(task.spec) for task in self._provider.tasks(*wanted)]

    def open(self, number: int, task: tuple[str, int]) -> dict[str, Any]:
        session = self._sessions[number] = self._provider.open(Task(self._config.name, *task))
        return {"prompt": session.prompt(), "tools": session.tools(), "takes_answer": session.takes_answer}

    def call(self, number: int, call: tuple[str, dict[str, Any]]) -> ToolResult:
        return self._session(number).call(*call)

    def answer(self, number: int, text: str) -> ToolResult:
        return self._session(number).answer(text)

    def close(self, number: int, _: None) -> None:
        if (session := self._sessions.pop(number, None)) is not None:
            session.close()

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            raise SessionLost("the session is closed")
        return self._sessions[number]


if __name__ == "__main__":
    serve(HostClerk)
