"""Messages between the training processes and the keeper of their vLLM server, in a directory of the stage's."""

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
"""Variable: the directory."""
POLL_S = 0.5
SETTLE_S = 60.0
"""Seconds from a client's failure to the end of the server that caused it. One that is still there is not restarted."""


@dataclass(frozen=True)
class ServerState(JsonFile):
    """The server of a stage."""

    start: int
    """Number of the start, from 1."""
    url: str
    """Empty while there is none."""
    fault: str = ""
    """Reason for which there will be none."""


class ServerLink:
    """Files that one process writes and another reads.

    Args:
        directory: of the stage alone.
    """

    def __init__(self, directory: Path) -> None:
        self._state, self._transfer = directory / "server.json", directory / "transfer"

    def tell(self, state: ServerState) -> None:
        write_atomically(self._state, state.to_json())

    def state(self) -> ServerState:
        """The server as it was told last."""
        return ServerState.from_json(self._state.read_text())

    def after(self, start: int, cause: Exception) -> ServerState:
        """Waits for the server that takes the place of one that was lost.

        Args:
            start: number of the one that was lost.
            cause: what made its client think so; raised where the server is still there.

        Raises:
            XpError: (ENGINE) there will be no other.
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
        """Within, the engine takes weights and answers nothing else."""
        self._transfer.touch()
        try:
            yield
        finally:
            self._transfer.unlink()

    def is_transferring(self) -> bool:
        return self._transfer.exists()
