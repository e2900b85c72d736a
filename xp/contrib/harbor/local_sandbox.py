"""A sandbox without isolation: a new directory on this machine, and a process that ends a session's processes."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from xp.contrib.harbor import keeper
from xp.contrib.harbor.sandbox import MAX_PROCESSES, REWARD_BYTES, VERIFIER_LOGS, Ran
from xp.envs.base import DeadlineExceeded, ProtocolError, ResponseLost

PREFIX: Final = "xp-harbor-"
ROOT_VARIABLE: Final = "XP_ROOT"
"""Variable with the directory that replaces a container's `/`: scripts write `${XP_ROOT}/logs/verifier/reward.txt`."""
PASSED: Final = ("PATH", "LANG", "LC_ALL", "TZ")
"""Variables of this machine that commands get; they get no other variable of xp."""
STOP_S: Final = 15.0
GRACE_S: Final = 30.0
"""Seconds that a keeper on a busy machine may take beyond a command's time limit."""


class LocalSandbox:
    """One directory with `app`, `tests` and `logs`, managed by a xp.contrib.harbor.keeper.

    Args:
        files: folder that is copied to the working directory, without its Dockerfile; None: none.
        environ: this process's variables, of which commands get `PASSED`.
        memory_gb: memory limit of each process; None: no limit.
    """

    def __init__(self, files: Path | None, environ: Mapping[str, str], memory_gb: float | None) -> None:
        self._owner = os.getpid()
        self._root = Path(tempfile.gettempdir()).absolute() / f"{PREFIX}{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        try:
            # The keeper makes the directory: made here, it would remain if this process was killed in between.
            self._keeper = _start(self._root, memory_gb)
            self._answer(time.monotonic() + GRACE_S)
            for name in ("home", "tmp", VERIFIER_LOGS[1:]):
                (self._root / name).mkdir(parents=True)
            _copy(files, self._root / "app")
        except BaseException:
            self.close()
            raise
        self._environ = {name: environ[name] for name in PASSED if name in environ} | {
            ROOT_VARIABLE: str(self._root),
            "HOME": str(self._root / "home"),
            "TMPDIR": str(self._root / "tmp"),
            "TERM": "dumb",
        }

    @property
    def root(self) -> Path:
        return self._root

    def run(
        self, command: str, environ: Mapping[str, str], timeout_s: float, output_bytes: int, user: str | None = None
    ) -> Ran:
        """See CommandSandbox; a task with a user is refused earlier."""
        del user
        request = {
            "command": command,
            "environ": {**self._environ, **environ},
            "timeout_s": timeout_s,
            "output_bytes": output_bytes,
            "max_processes": MAX_PROCESSES,
        }
        with self._lock:
            answer = self._ask(json.dumps(request).encode() + b"\n", timeout_s + GRACE_S)
        return Ran(answer["code"], answer["output"], answer["killed"])

    def put_tests(self, folder: Path) -> str:
        """See CommandSandbox; the directories are new: the model's files and links there are removed, not followed."""
        tests = self._root / "tests"
        for place in (tests, self._root / "logs"):
            if place.is_symlink() or place.is_file():
                place.unlink()
            else:
                keeper.remove(str(place))
        _copy(folder, tests)
        (self._root / VERIFIER_LOGS[1:]).mkdir(parents=True)
        return str(tests)

    def read(self, name: str) -> str | None:
        """See CommandSandbox; a link out of the directory is a fault."""
        path = self._root / VERIFIER_LOGS[1:] / name
        if not path.is_file():
            return None
        if path.resolve() != self._root.resolve() / VERIFIER_LOGS[1:] / name:
            raise ProtocolError(f"{VERIFIER_LOGS}/{name} is a link")
        with path.open("rb") as file:
            return file.read(REWARD_BYTES).decode("utf-8", "replace")

    def close(self) -> None:
        """See CommandSandbox; a forked process does not close its parent's sandbox."""
        process, self._keeper = self._keeper, None
        if self._owner != os.getpid():
            return
        if process is not None:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with suppress(OSError):
                    stream.close()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._root.exists():  # The keeper was killed, perhaps by the model.
            keeper.remove(str(self._root))

    def _ask(self, request: bytes, limit_s: float) -> dict[str, Any]:
        process, deadline = self._keeper, time.monotonic() + limit_s
        if process is None:
            raise ResponseLost("the sandbox is closed")
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except (OSError, ValueError) as error:
            raise ResponseLost(f"the process that holds the sandbox has ended: {error}") from None
        return self._answer(deadline)

    def _answer(self, deadline: float) -> dict[str, Any]:
        """The keeper's next answer; `deadline` is on the monotonic clock."""
        assert self._keeper is not None
        process, line = self._keeper, b""
        assert process.stdout is not None
        try:
            while not line.endswith(b"\n"):
                if not select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                    raise DeadlineExceeded("the sandbox did not answer in time")
                if not (piece := os.read(process.stdout.fileno(), 65536)):
                    raise ResponseLost("the process that holds the sandbox has ended")
                line += piece
        except (OSError, ValueError) as error:
            raise ResponseLost(f"the process that holds the sandbox has ended: {error}") from None
        answer: dict[str, Any] = json.loads(line)
        return answer


def _start(root: Path, memory_gb: float | None) -> subprocess.Popen[bytes]:
    memory = 0 if memory_gb is None else int(memory_gb * 1e9)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", keeper.__file__, str(root), str(memory), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in PASSED if name in os.environ},
        start_new_session=True,
    )


def _copy(folder: Path | None, to: Path) -> None:
    """Copies a task's folder; links, which stay within the task, become copies of their files."""
    if folder is None or not folder.is_dir():
        to.mkdir()
    else:
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("Dockerfile"))
