"""Runs Docker's command line; a fault names the field that needs Docker."""

from __future__ import annotations

import subprocess
from typing import Final

from xp.errors import ExitCode, XpError

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


def run_docker(needs: str, way_out: str, *arguments: str, with_errors: bool = False, limit_s: float = 600.0) -> str:
    """Runs docker and returns its output.

    Args:
        needs: field that needs Docker.
        way_out: alternative setting, for the message.
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
        raise XpError(f"{needs} needs docker, which is not on this machine", ExitCode.RUNTIME) from None
    except subprocess.TimeoutExpired:
        raise XpError(f"docker {arguments[0]} did not end in {limit_s:g} s", ExitCode.ENVIRONMENT) from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout or "").partition("\n\nRun 'docker")[0].strip()
        raise _failure(needs, way_out, arguments[0], said) from None
    return done.stdout.strip()


def check_daemon() -> None:
    """Raises XpError(RUNTIME) if no Docker daemon answers, which `env.sandbox=docker` needs."""
    run_docker(*SANDBOX_NEEDS, "version", limit_s=60.0)


def start_remover(container: str) -> subprocess.Popen[bytes]:
    """Starts a process that removes the container when its standard input is closed, or this process has ended."""
    return subprocess.Popen(
        ["sh", "-c", REMOVE, "sh", container],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _failure(needs: str, way_out: str, what: str, said: str) -> XpError:
    """The error of a failed command; `docker version` shows whether the daemon is missing."""
    if subprocess.run(("docker", "version"), stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        return XpError(
            f"{needs} needs a Docker daemon, and this machine's does not answer: {said[:500]}\n"
            f"start it, set DOCKER_HOST to another one's socket, or {way_out}",
            ExitCode.RUNTIME,
        )
    return XpError(f"docker {what} failed: {said[:500]}", ExitCode.ENVIRONMENT)
