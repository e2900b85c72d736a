"""The child process of a user's grader, with limited memory; the parent ends it if a call hangs."""

from __future__ import annotations

import threading
from typing import Any

from xp.envs.config import EnvConfig
from xp.envs.graders import Begin, GraderConversation, conversations_of
from xp.envs.rpc_server import serve


class GraderHandler:
    """The conversations of one grader; see xp.envs.rpc_server."""

    def __init__(self, config: EnvConfig) -> None:
        self._config = config
        self._begin_lock = threading.Lock()
        self._begin: Begin | None = None
        self._conversations: dict[int, GraderConversation] = {}

    def open(self, conversation: int, row: Any) -> list[Any]:
        with self._begin_lock:
            if self._begin is None:
                self._begin = conversations_of(self._config)
        begun = self._begin(row)
        self._conversations[conversation] = begun
        return list(begun.opening)

    def take(self, conversation: int, text: str) -> Any:
        return self._conversations[conversation].take(text)

    def close(self, conversation: int, _: None) -> None:
        if (known := self._conversations.pop(conversation, None)) is not None:
            known.close()


if __name__ == "__main__":
    serve(GraderHandler)
