"""Messages between the training processes and the keeper of their vLLM server, in a directory of the stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xp.atomic import write_atomically
from xp.codec import JsonFile
from xp.errors import ExitCode, XpError

DIRECTORY = "XP_TRL_SERVER"
"""Variable with the directory."""
POLL_S = 0.5
SETTLE_S = 60.0
"""Seconds from a client's failure to the end of the server that caused it; a server that does not end is not
restarted."""


@dataclass(frozen=True)
class ServerState(JsonFile):
    """State of a stage's server."""

    start: int
    """Number of the start, from 1."""
    url: str
    """URL of the server; empty while there is none."""
    fault: str = ""
    """Reason why there will be no server any more; empty: there is one, or there will be."""


class ServerLink:
    """Files that one process writes and another reads.

    Args:
        directory: directory of this stage only.
    """

    def __init__(self, directory: Path) -> None:
        self._state, self._transfer = directory / "server.json", directory / "transfer"

    def tell(self, state: ServerState) -> None:
        write_atomically(self._state, state.to_json())

    def state(self) -> ServerState:
        """The last state of the server."""
        return ServerState.from_json(self._state.read_text())

    def after(self, start: int, cause: Exception) -> ServerState:
        """Waits for the replacement of a lost server.

        Args:
            start: number of the lost server.
            cause: the client's exception, which is raised if the server is still running.

        Raises:
            XpError: (ENGINE) there will be no replacement.
        """
        end = time.monotonic() + SETTLE_S
        while True:
            state = self.state()
            if state.fault:
                raise XpError(state.fault, ExitCode.ENGINE) from cause
            if state.url and state.start > start:
                return state
            if state.url and time.monotonic() > end:
                raise cause
            time.sleep(POLL_S)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Context manager for a transfer of weights, during which the engine gives no other answers."""
        self._transfer.touch()
        try:
            yield
        finally:
            self._transfer.unlink()

    def is_transferring(self) -> bool:
        return self._transfer.exists()
