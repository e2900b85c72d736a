"""Runs Docker's command line; a fault names the field that needs Docker."""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.loopback import direct_opener

REMOVE: Final = 'trap "" TERM INT HUP; read -r _; docker rm --force "$1" >/dev/null 2>&1'
"""Shell script that outlives this process and removes the container.

Its standard input is a pipe that only this process holds open.
"""
NO_SANDBOX: Final = (
    "warning: env.sandbox=none: the model's commands run on this machine with your rights, without isolation of files,"
    " network or users; the tasks' images and limits are not applied"
)
SANDBOX_NEEDS: Final = (
    "env.sandbox=docker",
    "set env.sandbox=none, which runs commands on this machine without isolation",
)
PORT: Final = 8000
"""Port in the container on which OpenEnv's images listen."""
POLL_S: Final = 0.5
REMOVE_S: Final = 60.0
LOG_LINES: Final = 20
NEEDS: Final = ("env.image", "serve the environment with env.serve or env.target")


def run_docker(
    needs: str, fix: str, *arguments: str, with_errors: bool = False, limit_s: float = 600.0
) -> str:
    """Runs docker and returns its output.

    Args:
        needs: field that needs Docker.
        fix: alternative setting, for the message.
        arguments: arguments of docker.
        with_errors: whether the result includes the standard error.
        limit_s: seconds after which the command is stopped.

    Raises:
        XpError: RUNTIME without docker or its daemon, ENVIRONMENT if the command failed.
    """
    try:
        done = subprocess.run(
            ("docker", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if with_errors else subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=True,
        )
    except FileNotFoundError:
        raise XpError(
            f"{needs} needs docker, which is not on this machine", ExitCode.RUNTIME
        ) from None
    except subprocess.TimeoutExpired:
        raise XpError(
            f"docker {arguments[0]} did not end in {limit_s:g} s", ExitCode.ENVIRONMENT
        ) from None
    except subprocess.CalledProcessError as error:
        output = (error.stderr or error.stdout or "").partition("\n\nRun 'docker")[0].strip()
        raise _failure(needs, fix, arguments[0], output) from None
    return done.stdout.strip()


def check_daemon(fix: str = SANDBOX_NEEDS[1]) -> None:
    """Raises XpError(RUNTIME) if no Docker daemon answers, which `env.sandbox=docker` needs."""
    run_docker(SANDBOX_NEEDS[0], fix, "version", limit_s=60.0)


class DockerContainer:
    """A running container: `remove` removes it, or the end of this process."""

    def __init__(self, container_id: str) -> None:
        self.id: str | None = container_id
        self._remover = subprocess.Popen(
            ["sh", "-c", REMOVE, "sh", container_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.remove)

    def remove(self) -> None:
        """Removes the container; idempotent."""
        if self.id is None:
            return
        self.id = None
        atexit.unregister(self.remove)
        assert self._remover.stdin is not None
        self._remover.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._remover.wait(REMOVE_S)


def _failure(needs: str, fix: str, what: str, output: str) -> XpError:
    """The error of a failed command; `docker version` shows whether the daemon is missing."""
    if subprocess.run(
        ("docker", "version"), stdin=subprocess.DEVNULL, capture_output=True, check=False
    ).returncode:
        return XpError(
            f"{needs} needs a Docker daemon, and this machine's does not answer: {output[:500]}\n"
            f"start it, set DOCKER_HOST to another one's socket, or {fix}",
            ExitCode.RUNTIME,
        )
    return XpError(f"docker {what} failed: {output[:500]}", ExitCode.ENVIRONMENT)


class ImageServer:
    """One container; it gets none of this process's variables.

    Args:
        image: name of the image for `docker run`.
        start_s: seconds until it must answer `/health`.
        memory_gb: memory of the container. None means no limit.
    """

    def __init__(self, image: str, start_s: float, memory_gb: float | None) -> None:
        self._bound = () if memory_gb is None else ("--memory", f"{memory_gb * 1e9:.0f}")
        self.url = ""
        self._image = image
        self._start_s = start_s
        self._container: DockerContainer | None = None
        self._id = ""

    def start(self) -> None:
        """Starts the container and waits until it answers; raises XpError."""
        # Without --rm: the log of a container that ended by itself has the reason.
        try:
            publish = ("--publish", f"127.0.0.1::{PORT}")
            output = _docker("run", "--detach", *publish, *self._bound, self._image)
        except XpError as error:
            if error.code is ExitCode.RUNTIME:
                raise
            fix = f"build {self._image} of env.image or `docker pull` it on this machine, or correct the name"
            raise XpError(f"{error}\n{fix}", error.code) from None
        self._id = output.splitlines()[-1]
        self._container = DockerContainer(self._id)
        deadline = time.monotonic() + self._start_s
        try:
            self.url = self._address()
            while not _is_healthy(self.url):
                self._check_running()
                if time.monotonic() > deadline:
                    limit = f"{self._start_s:g} s (env.limits.create_timeout_s)"
                    fault = f"image {self._image} did not answer {self.url}/health in {limit}"
                    raise XpError(f"{fault}{self._log()}", ExitCode.ENVIRONMENT)
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Removes the container, and says so if it had ended by itself."""
        if self._container is not None and self._container.id is not None:
            with suppress(XpError):
                ended = self._ended()
                if ended:
                    print(f"xp: {ended}", file=sys.stderr, flush=True)
            self._container.remove()

    def _address(self) -> str:
        try:
            return f"http://{_docker('port', self._id, f'{PORT}/tcp').splitlines()[0]}"
        except (XpError, IndexError):
            self._check_running()
            raise

    def _check_running(self) -> None:
        ended = self._ended()
        if ended:
            raise XpError(ended, ExitCode.ENVIRONMENT)

    def _ended(self) -> str | None:
        """Returns how the container ended unexpectedly; None while it runs."""
        state, code = _docker(
            "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", self._id
        ).split()
        if state not in ("exited", "dead"):
            return None
        return f"the container of {self._image} ended by itself with code {code}{self._log()}"

    def _log(self) -> str:
        """The last lines of the container's log."""
        with suppress(XpError):
            output = _docker("logs", "--tail", str(LOG_LINES), self._id, with_errors=True)
            if output:
                return f"; it said\n{output}"
            return "; it said nothing"
        return ""


def _docker(*arguments: str, with_errors: bool = False) -> str:
    """Runs docker for `env.image`."""
    return run_docker(*NEEDS, *arguments, with_errors=with_errors)


def _is_healthy(url: str) -> bool:
    with suppress(OSError):
        with direct_opener().open(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    return False
