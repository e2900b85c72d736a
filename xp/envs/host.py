"""The child process of a package's environments; its parent is a xp.envs.hosted.HostedProvider."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from xp.envs.base import Provider, Session, SessionLost, Task, ToolResult
from xp.envs.config import EnvConfig
from xp.envs.rpc_server import directory_kind, serve, to_stderr
from xp.lib.atomic import private_directory
from xp.lib.load import load_object

END_S: Final = 4.0
"""Seconds to close open sessions after the parent's end; xp.lib.processes kills this process after five seconds."""


class HostHandler:
    """A provider with its sessions, and a directory for all their temporary files; see xp.envs.rpc_server."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._sessions: dict[int, Session] = {}
        self._provider: Provider | None = None
        self._directory = private_directory(directory_kind(os.getppid()))
        tempfile.tempdir = os.environ["TMPDIR"] = str(self._directory)

    def start(self, _: int, hosted: str) -> str | None:
        """Makes the provider `module:Class`; returns the name of a module that this Python lacks, else None."""
        random.seed(
            0
        )  # Tasks that the package shuffles without a seed have the same order in every process.
        try:
            self._provider = load_object(hosted)(self._config, os.environ)
        except ModuleNotFoundError as error:
            return error.name or str(error)
        return None

    def version(self, _: int, __: None) -> str:
        return self._made().version()

    def sizes(self, _: int, __: None) -> dict[str, int]:
        provider = self._made()
        return {split: provider.num_tasks(split) for split in provider.splits()}

    def specs(self, _: int, request: tuple[str, Sequence[int]]) -> list[dict[str, Any]]:
        return [dict(task.spec) for task in self._made().tasks(*request)]

    def open(self, number: int, task: tuple[str, int]) -> dict[str, Any]:
        session = self._sessions[number] = self._made().open(Task(self._config.name, *task))
        return {
            "prompt": session.prompt(),
            "tools": session.tools(),
            "takes_answer": session.takes_answer,
        }

    def call(self, number: int, call: tuple[str, dict[str, Any]]) -> ToolResult:
        return self._session(number).call(*call)

    def answer(self, number: int, text: str) -> ToolResult:
        return self._session(number).answer(text)

    def close(self, number: int, _: None) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            session.close()

    def shut(self, _: int, __: None) -> None:
        """Closes all sessions and the provider."""
        sessions = list(self._sessions.values())
        self._sessions = {}
        for session in sessions:
            session.close()
        provider = self._provider
        self._provider = None
        if provider is not None:
            with suppress(Exception):
                provider.close()

    def end(self) -> None:
        """Removes the temporary files, even if the provider does not close in time."""
        shutting = threading.Thread(target=self.shut, args=(0, None), daemon=True)
        shutting.start()
        shutting.join(END_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _made(self) -> Provider:
        if self._provider is None:
            raise SessionLost("the provider is closed")
        return self._provider

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            raise SessionLost("the session is closed")
        return self._sessions[number]


if __name__ == "__main__":
    to_stderr()
    serve(HostHandler)
