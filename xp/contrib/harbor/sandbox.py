"""The interface of a sandbox for the commands of a model and a verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

MAX_PROCESSES: Final = 512
"""Largest number of processes of one session at the same time."""
REWARD_BYTES: Final = 65536
"""Largest size of a reward file that is read, in bytes."""
VERIFIER_LOGS: Final = "/logs/verifier"


@dataclass(frozen=True)
class Ran:
    """Result of a command."""

    code: int | None
    """Exit code. None means that it was killed."""
    output: str
    """Both output streams, without the middle if they are long."""
    killed: str = ""
    """Reason why it was killed; empty if it ended by itself."""


class CommandSandbox(Protocol):
    """Sandbox of one session. Paths are those of Harbor's containers; methods raise EnvFault."""

    def run(
        self,
        command: str,
        environ: Mapping[str, str],
        timeout_s: float,
        output_bytes: int,
        user: str | None = None,
    ) -> Ran:
        """Runs a command with bash in the task's working directory; kills it after `timeout_s` seconds."""

    def put(self, folder: Path, name: str) -> str:
        """Copies a folder to a new directory `/NAME`; returns its path in the sandbox."""

    def put_tests(self, folder: Path) -> str:
        """Empties the verifier's logs and copies `folder` to `/tests`; returns the path of the tests in the sandbox."""

    def read(self, name: str) -> str | None:
        """Text of a file in the verifier's logs. None means that there is no such file."""

    def close(self) -> None:
        """Ends all processes and removes all files; idempotent, never raises."""


class ContainerSandbox:
    """What sandboxes with a file system of their own share; subclasses run commands there and copy folders."""

    def put_tests(self, folder: Path) -> str:
        """See CommandSandbox."""
        self._as_root(
            f"rm -rf {VERIFIER_LOGS}; mkdir -p {VERIFIER_LOGS}; chmod 777 {VERIFIER_LOGS}"
        )
        return self.put(folder, "tests")

    def read(self, name: str) -> str | None:
        """See CommandSandbox; the file is read within the sandbox, so that links cannot leave it."""
        path = f"{VERIFIER_LOGS}/{name}"
        output = self._as_root(
            f"test -f {path} && echo there && head -c {REWARD_BYTES} {path} || true"
        )
        there, _, text = output.partition("\n")
        return text if there == "there" else None

    def put(self, folder: Path, name: str) -> str:
        """See CommandSandbox."""
        self._as_root(f"rm -rf /{name}; mkdir -p /{name}")
        self._copy(folder, f"/{name}")
        self._as_root(f"chmod -R a+rx /{name}")
        return f"/{name}"

    def _as_root(self, command: str) -> str:
        """Output of a command of root's; raises EnvFault if it fails."""
        raise NotImplementedError

    def _copy(self, folder: Path, path: str) -> None:
        """Copies what is in a folder to a directory of the sandbox; raises EnvFault."""
        raise NotImplementedError
