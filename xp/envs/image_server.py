"""Runs a Docker image that serves an environment on this machine's loopback, while a stage needs it."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from xp.envs.docker import run_docker, start_remover
from xp.errors import ExitCode, XpError
from xp.lib.exchange import direct_opener

PORT: Final = 8000
"""Port in the container on which OpenEnv's images listen."""
POLL_S: Final = 0.5
REMOVE_S: Final = 60.0
LOG_LINES: Final = 20
NEEDS: Final = ("env.image", "serve the environment with env.serve or env.target")


class ImageServer:
    """One container; it gets none of this process's variables.

    Args:
        image: name of the image for `docker run`.
        start_s: seconds until it must answer `/health`.
        memory_gb: memory of the container; None: no limit.
    """

    def __init__(self, image: str, start_s: float, memory_gb: float | None = None) -> None:
        self._bound = () if memory_gb is None else ("--memory", f"{memory_gb * 1e9:.0f}")
        self.url = ""
        self._image = image
        self._start_s = start_s
        self._id: str | None = None
        self._remover: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def start(self) -> None:
        """Starts the container and waits until it answers; raises XpError."""
        self._id = self._run()
        try:
            atexit.register(self.stop)
            self._remover = start_remover(self._id)
            self.url = self._address()
            deadline = time.monotonic() + self._start_s
            while not _is_healthy(self.url):
                self._check_running()
                if time.monotonic() > deadline:
                    raise XpError(
                        f"image {self._image} did not answer {self.url}/health in {self._start_s:g} s"
                        f" (env.limits.create_timeout_s){self._log()}",
                        ExitCode.ENVIRONMENT,
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Removes the container; idempotent. A forked process does not remove its parent's container."""
        if self._id is None or self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        with suppress(XpError):
            if ended := self._ended():
                print(f"xp: {ended}", file=sys.stderr, flush=True)
        self._id, remover = None, self._remover
        if remover is not None and remover.stdin is not None:
            remover.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                remover.wait(REMOVE_S)

    def _run(self) -> str:
        # Without --rm: the log of a container that ended by itself has the reason.
        try:
            publish = ("--publish", f"127.0.0.1::{PORT}")
            return _docker("run", "--detach", *publish, *self._bound, self._image).splitlines()[-1]
        except XpError as error:
            if error.code is ExitCode.RUNTIME:
                raise
            raise XpError(
                f"{error}\nenv.image={self._image}: build it or `docker pull` it on this machine, or correct the name",
                error.code,
            ) from None

    def _address(self) -> str:
        try:
            assert self._id is not None
            return f"http://{_docker('port', self._id, f'{PORT}/tcp').splitlines()[0]}"
        except (XpError, IndexError):
            self._check_running()
            raise

    def _check_running(self) -> None:
        if ended := self._ended():
            raise XpError(ended, ExitCode.ENVIRONMENT)

    def _ended(self) -> str | None:
        """Returns how the container ended unexpectedly; None while it runs."""
        assert self._id is not None
        state, code = _docker("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self._id).split()
        if state not in ("exited", "dead"):
            return None
        return f"the container of {self._image} ended by itself with code {code}{self._log()}"

    def _log(self) -> str:
        """The last lines of the container's log."""
        assert self._id is not None
        with suppress(XpError):
            said = _docker("logs", "--tail", str(LOG_LINES), self._id, with_errors=True)
            return f"; it said\n{said}" if said else "; it said nothing"
        return ""


def _docker(*arguments: str, with_errors: bool = False) -> str:
    """See xp.envs.docker."""
    return run_docker(*NEEDS, *arguments, with_errors=with_errors)


def _is_healthy(url: str) -> bool:
    with suppress(OSError):
        with direct_opener().open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    return False
