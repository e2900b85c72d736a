"""A sandbox in a container: one image per task, one container per session, which is always removed."""

from __future__ import annotations

import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from xp.contrib.harbor.keeper import Output
from xp.contrib.harbor.sandbox import MAX_PROCESSES, ContainerSandbox, Ran
from xp.contrib.harbor.task_folder import HarborTask, folder_digest
from xp.envs.base import EnvUnavailable, ResponseLost
from xp.envs.docker import SANDBOX_NEEDS, DockerContainer, run_docker
from xp.errors import ExitCode, XpError

KILL_S: Final = 2
"""Seconds between SIGTERM and SIGKILL for a command in the container."""
GRACE_S: Final = 30.0
EXPORT: Final = 'eval "$(cat)" || exit 126; exec "$@" </dev/null'
"""Shell script that reads variables from standard input and then executes its arguments."""
KILLED: Final = (124, 137)
"""Exit codes of `timeout` for a command that it stopped."""


class DockerImages:
    """Images of tasks, each built once per process."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._built: set[str] = set()

    def of(self, task: HarborTask) -> str:
        """Name of the task's image; raises EnvUnavailable if it cannot be built."""
        if task.image is not None:
            return task.image
        name = f"xp-harbor:{folder_digest(task.files)[:20]}"
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._built:
                docker(
                    "build", "--quiet", "--tag", name, str(task.files), limit_s=task.build_timeout_s
                )
                self._built.add(name)
        return name


class DockerSandbox(ContainerSandbox):
    """See xp.contrib.harbor.sandbox.CommandSandbox. The container gets none of this process's variables.

    Args:
        image: image of the task.
        task: the task, with its limits.
        memory_gb: memory of the container, if the task has no limit of its own.
        start_s: seconds that the start may take.
    """

    def __init__(
        self, image: str, task: HarborTask, memory_gb: float | None, start_s: float
    ) -> None:
        self._workdir = task.workdir
        if task.memory_mb:
            memory = f"{task.memory_mb}m"
        elif memory_gb is None:
            memory = None
        else:
            memory = f"{memory_gb * 1e9:.0f}"
        bounds = ["--pids-limit", str(MAX_PROCESSES)]
        bounds += [] if memory is None else ["--memory", memory]
        bounds += [] if task.cpus is None else ["--cpus", f"{task.cpus:g}"]
        bounds += [] if task.has_network else ["--network", "none"]
        start = ("--detach", "--init", "--entrypoint", "sh", *bounds, image, "-c", "sleep infinity")
        self._running = DockerContainer(docker("run", *start, limit_s=start_s).splitlines()[-1])

    def run(
        self,
        command: str,
        environ: Mapping[str, str],
        timeout_s: float,
        output_bytes: int,
        user: str | None = None,
    ) -> Ran:
        """See CommandSandbox.

        Variables are passed as a script on standard input, since a task's `PATH` or `DOCKER_HOST` must not affect
        programs of this machine, and argv must not have secret values.
        """
        if self._workdir is None:
            where = []
        else:
            where = ["--workdir", self._workdir]
        who = [] if user is None else ["--user", user]
        exports = "".join(
            f"export {name}={shlex.quote(value)}\n" for name, value in environ.items()
        )
        bounded = ("timeout", "--kill-after", str(KILL_S), f"{timeout_s:g}", "bash", "-c", command)
        prefix = ("docker", "exec", "--interactive", *where, *who, self._container())
        began = time.monotonic()
        reading, writing = os.pipe()
        output = Output(reading, output_bytes)
        try:
            code = subprocess.run(
                (*prefix, "sh", "-c", EXPORT, "sh", *bounded),
                input=exports.encode(),
                stdout=writing,
                stderr=writing,
                timeout=timeout_s + GRACE_S,
                check=False,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ResponseLost(f"docker exec: {type(error).__name__}") from None
        finally:
            os.close(writing)
        text = output.text()
        self._check_running(code)
        is_late = code in KILLED and time.monotonic() - began >= timeout_s
        if is_late:
            return Ran(None, text, f"it took longer than {timeout_s:g} s")
        return Ran(code, text)

    def close(self) -> None:
        """See CommandSandbox."""
        self._running.remove()

    def _as_root(self, command: str) -> str:
        return docker("exec", "--user", "root", self._container(), "sh", "-c", command)

    def _copy(self, folder: Path, path: str) -> None:
        docker("cp", "--follow-link", f"{folder}/.", f"{self._container()}:{path}")

    def _container(self) -> str:
        if self._running.id is None:
            raise ResponseLost("the sandbox is closed")
        return self._running.id

    def _check_running(self, code: int) -> None:
        """Checks the container for the codes 125 to 127, which Docker's own failures share with commands."""
        if code in (125, 126, 127, 137):
            state = docker("inspect", "--format", "{{.State.Running}}", self._container())
            if state != "true":
                raise ResponseLost("the container has ended")


def docker(*arguments: str, limit_s: float = 600.0) -> str:
    """Runs docker; raises EnvUnavailable, since a failed image or container is not the model's fault."""
    try:
        return run_docker(*SANDBOX_NEEDS, *arguments, limit_s=limit_s)
    except XpError as error:
        if error.code is ExitCode.RUNTIME:
            raise
        raise EnvUnavailable(str(error)) from None
