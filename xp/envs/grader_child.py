"""The child process in which a user's grader runs: bounded memory, and ended from outside where a call hangs."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from xp.envs.base import EnvFault
from xp.envs.bounds import bound_memory, die_with
from xp.envs.config import EnvConfig
from xp.envs.graders import Begin, GraderConversation, conversations_of
from xp.errors import XpError


class Desk:
    """Answers requests `(number, verb, conversation, argument)` by `(number, result)`, each on a thread of its own."""

    def __init__(self, connection: Connection, config: EnvConfig) -> None:
        self._connection, self._config = connection, config
        self._lock, self._begin_lock = threading.Lock(), threading.Lock()
        self._begin: Begin | None = None
        self._conversations: dict[int, GraderConversation] = {}

    def serve(self) -> None:
        """Until the parent hangs up."""
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                return
            threading.Thread(target=self._answer, args=request, name="grader", daemon=True).start()

    def _answer(self, number: int, verb: str, conversation: int, argument: Any) -> None:
        try:
            result = ("ok", getattr(self, f"_{verb}")(conversation, argument))
        except XpError as error:
            result = ("xp", (str(error), int(error.code)))
        except EnvFault as error:
            result = ("fault", (type(error).__name__, str(error)))
        except BaseException as error:
            place = inspect.trace()[-1]
            result = ("raised", f"raised {type(error).__name__}: {error} ({place.filename}:{place.lineno})")
        with self._lock:
            self._connection.send((number, *result))

    def _open(self, conversation: int, row: Any) -> list[Any]:
        with self._begin_lock:
            if self._begin is None:
                self._begin = conversations_of(self._config)
        begun = self._begin(row)
        self._conversations[conversation] = begun
        return list(begun.opening)

    def _take(self, conversation: int, text: str) -> Any:
        return self._conversations[conversation].take(text)

    def _close(self, conversation: int, _: None) -> None:
        if (known := self._conversations.pop(conversation, None)) is not None:
            known.close()


def main(descriptor: int, parent: int) -> None:
    """Serve the grader of the config that comes first."""
    die_with(parent)
    connection = Connection(descriptor)
    config: EnvConfig = connection.recv()
    bound_memory(config.limits.memory_gb)
    Desk(connection, config).serve()
    os._exit(0)  # A grader that hangs on a thread of its own does not keep the process.


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
