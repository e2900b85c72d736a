"""The interface of a place in which commands of a model and a verifier run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

MAX_PROCESSES: Final = 512
"""Processes of one session at the same time."""
REWARD_BYTES: Final = 65536
"""A reward file is not read beyond this size."""
VERIFIER_LOGS: Final = "/logs/verifier"


@dataclass(frozen=True)
class Ran:
    """A command that was run."""

    code: int | None
    """Exit code; None: it was killed."""
    output: str
    """Both streams, without the middle where it was long."""
    killed: str = ""
    """Reason why it was killed; empty if it ended by itself."""


class CommandSandbox(Protocol):
    """One session's machine. Paths are those of Harbor's containers; methods raise EnvFault."""

    def run(
        self, command: str, environ: Mapping[str, str], timeout_s: float, output_bytes: int, user: str | None = None
    ) -> Ran:
        """Run a command by bash in the task's working directory; kill it after `timeout_s`."""

    def put_tests(self, folder: Path) -> str:
        """Empty the verifier's logs and copy `folder` to `/tests`. Returns the path of tests there."""

    def read(self, name: str) -> str | None:
        """Text of a file of the verifier's logs; None: there is no such file."""

    def close(self) -> None:
        """End all processes and remove everything; idempotent, never raises."""
