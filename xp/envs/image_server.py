"""A Docker image that serves an environment on this machine's loopback for as long as a stage needs it."""

from __future__ import annotations

import atexit
import os
import subprocess
import time
import urllib.request
from contextlib import suppress
from typing import Final

from xp.errors import ExitCode, XpError

PORT: Final = 8000
"""On which OpenEnv's images listen."""
POLL_S: Final = 0.5


class ImageServer:
    """One container; nothing of this process's environment goes into it.

    Args:
        image: as `docker run` takes it.
        start_s: seconds within which it must answer `/health`.
    """

    def __init__(self, image: str, start_s: float) -> None:
        self.url = ""
        self._image = image
        self._start_s = start_s
        self._id: str | None = None
        self._owner = os.getpid()

    def start(self) -> None:
        """Start the container and wait until it answers; raises XpError."""
        self._id = _docker("run", "--detach", "--rm", "--publish", f"127.0.0.1::{PORT}", self._image)
        atexit.register(self.stop)
        try:
            self.url = f"http://{_docker('port', self._id, f'{PORT}/tcp').splitlines()[0]}"
            deadline = time.monotonic() + self._start_s
            while not _is_healthy(self.url):
                if time.monotonic() > deadline:
                    raise XpError(
                        f"image {self._image} did not answer {self.url}/health in {self._start_s:g} s",
                        ExitCode.ENVIRONMENT,
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Remove the container; idempotent, and a forked process leaves its parent's alone."""
        container, self._id = self._id, None
        if container is not None and self._owner == os.getpid():
            atexit.unregister(self.stop)
            with suppress(XpError):
                _docker("rm", "--force", container)


def _docker(*arguments: str) -> str:
    try:
        done = subprocess.run(("docker", *arguments), capture_output=True, text=True, timeout=600, check=True)
    except FileNotFoundError:
        raise XpError("env.image needs docker, which is not on this machine", ExitCode.RUNTIME) from None
    except subprocess.TimeoutExpired:
        raise XpError(f"docker {arguments[0]} did not end in ten minutes", ExitCode.ENVIRONMENT) from None
    except subprocess.CalledProcessError as error:
        raise XpError(f"docker {arguments[0]} failed: {error.stderr.strip()[:500]}", ExitCode.ENVIRONMENT) from None
    return done.stdout.strip()


def _is_healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError):
        with opener.open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    return False
