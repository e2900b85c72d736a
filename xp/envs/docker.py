"""Docker's command line: its output, or the fault in words of the field that needs it."""

from __future__ import annotations

import subprocess
from typing import Final

from xp.errors import ExitCode, XpError

REMOVE: Final = 'trap "" TERM INT HUP; read -r _; docker rm --force "$1" >/dev/null 2>&1'
"""Shell script that outlives this process and removes the container.

Its standard input is a pipe that only this process holds open.
"""


def run_docker(needs: str, way_out: str, *arguments: str, with_errors: bool = False, limit_s: float = 600.0) -> str:
    """Runs docker and returns its output.

    Args:
        needs: field that needs it.
        way_out: what else could be set.
        arguments: of docker.
        with_errors: return what it writes to its standard error, too.
        limit_s: seconds after which it is given up.

    Raises:
        XpError: RUNTIME where there is no docker or no daemon, ENVIRONMENT where it could not do it.
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


def start_remover(container: str) -> subprocess.Popen[bytes]:
    """A process that removes the container when its standard input is closed, or this process is gone."""
    return subprocess.Popen(
        ["sh", "-c", REMOVE, "sh", container],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _failure(needs: str, way_out: str, what: str, said: str) -> XpError:
    """`docker version` asks the daemon alone: it tells one that is not there from a command that failed."""
    if subprocess.run(("docker", "version"), stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode:
        return XpError(
            f"{needs} needs a Docker daemon, and this machine's does not answer: {said[:500]}\n"
            f"start it, set DOCKER_HOST to another one's socket, or {way_out}",
            ExitCode.RUNTIME,
        )
    return XpError(f"docker {what} failed: {said[:500]}", ExitCode.ENVIRONMENT)
