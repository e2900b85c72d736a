"""A sandbox without isolation: a new directory on this machine, and a process that ends a session's processes."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.contrib.harbor.keeper import remove
from xp.contrib.harbor.sandbox import REWARD_BYTES, VERIFIER_LOGS, Ran
from xp.envs.base import ProtocolError
from xp.envs.child_process import Child
from xp.envs.pythons import path_for

ROOT_VARIABLE: Final = "XP_ROOT"
"""Variable with the directory that replaces a container's `/`: scripts write `${XP_ROOT}/logs/verifier/reward.txt`."""
PASSED: Final = ("PATH", "LANG", "LC_ALL", "TZ")
"""Variables of this machine that commands get; they get no other variable of xp."""
START_S: Final = 60.0
GRACE_S: Final = 30.0


class LocalSandbox:
    """One directory with `app`, `tests` and `logs`, of a xp.contrib.harbor.keeper.

    Args:
        files: folder that is copied to the working directory, without its Dockerfile. None means that there is none.
        memory_gb: memory limit of each process. None means that there is none.
        environ: this process's variables, of which commands get `PASSED`.
    """

    def __init__(
        self, files: Path | None, memory_gb: float | None, environ: Mapping[str, str]
    ) -> None:
        self._owner = os.getpid()
        passed = {name: environ[name] for name in PASSED if name in environ}
        env = {**passed, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": path_for(sys.executable)}
        self._child = Child("xp.contrib.harbor.keeper", None, memory_gb, env, sys.executable)
        try:
            self.root: Path = self._child.ask("root", 0, None, START_S, "the start of the sandbox")
            for name in ("home", "tmp", VERIFIER_LOGS[1:]):
                (self.root / name).mkdir(parents=True)
            _copy(files, self.root / "app")
        except BaseException:
            self.close()
            raise
        self._environ = passed | {
            ROOT_VARIABLE: str(self.root),
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "TERM": "dumb",
        }

    def run(
        self,
        command: str,
        environ: Mapping[str, str],
        timeout_s: float,
        output_bytes: int,
        user: str | None = None,
    ) -> Ran:
        """See CommandSandbox; a task with a user is refused earlier."""
        request = {
            "command": command,
            "environ": {**self._environ, **environ},
            "timeout_s": timeout_s,
            "output_bytes": output_bytes,
        }
        ran: Ran = self._child.ask("run", 0, request, timeout_s + GRACE_S, "the command")
        return ran

    def put(self, folder: Path, name: str) -> str:
        """See CommandSandbox."""
        _clear(self.root / name)
        _copy(folder, self.root / name)
        return str(self.root / name)

    def put_tests(self, folder: Path) -> str:
        """See CommandSandbox; the directories are new: the model's files and links there are removed, not followed."""
        _clear(self.root / "logs")
        (self.root / VERIFIER_LOGS[1:]).mkdir(parents=True)
        return self.put(folder, "tests")

    def read(self, name: str) -> str | None:
        """See CommandSandbox; a link out of the directory is a fault."""
        path = self.root / VERIFIER_LOGS[1:] / name
        if not path.is_file():
            return None
        if path.resolve() != self.root.resolve() / VERIFIER_LOGS[1:] / name:
            raise ProtocolError(f"{VERIFIER_LOGS}/{name} is a link")
        with path.open("rb") as file:
            return file.read(REWARD_BYTES).decode("utf-8", "replace")

    def close(self) -> None:
        """See CommandSandbox; a forked process does not close its parent's sandbox."""
        self._child.end("the sandbox is closed", now=True)
        if self._owner == os.getpid() and hasattr(self, "root"):
            remove(self.root)


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    remove(path)


def _copy(folder: Path | None, to: Path) -> None:
    """Copies a task's folder; links, which stay within the task, become copies of their files."""
    if folder is None or not folder.is_dir():
        to.mkdir()
    else:
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("Dockerfile"))
