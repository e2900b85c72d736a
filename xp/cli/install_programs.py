"""The programs that `python -m xp install` runs: uv and git."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec

from xp.errors import ExitCode, XpError


def uv() -> list[str]:
    """The command that starts uv; raises XpError(RUNTIME) where there is none."""
    if find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    if (program := shutil.which("uv")) is not None:
        return [program]
    raise XpError(f"install needs uv: {sys.executable} -m pip install uv", ExitCode.RUNTIME)


def run(command: list[str], more: str = "") -> None:
    """Run a program, which shows its own progress.

    Args:
        command: its words.
        more: end of the message where it fails.

    Raises:
        XpError: RUNTIME, it cannot be started, or failed.
    """
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise XpError(
            f"install stopped at: {shlex.join(command)}\nthe reason is above; the same command starts again{more}",
            ExitCode.RUNTIME,
        ) from None
