"""Copies a stage's log from a service's client (`modal app logs`, `sky jobs logs`) to the run's log."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from xp.launchers.base import Echo
from xp.launchers.node.log import LogStream
from xp.launchers.node.pipe import drain
from xp.secrets.redaction import Redactor

QUIET_S = 15.0
"""Seconds that the last lines of a log may take after the stage's end."""


def follow_until_over(
    command: Sequence[str],
    log: Path,
    redactor: Redactor,
    echo: Echo,
    poll: Callable[[], int | None],
    ask_s: float,
) -> int:
    """Follows a stage's log to its end; returns the stage's exit code.

    Args:
        command: command that prints the log and follows it.
        log: file to which the redacted log is appended.
        redactor: redactor of the run's secrets.
        echo: receives lines for the screen.
        poll: returns the exit code; None while the stage is running.
        ask_s: seconds between two calls of `poll`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    logs = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with log.open("ab") as file:
        stream = LogStream(file, redactor, echo, on_screen=False)
        reader = threading.Thread(target=drain, args=(logs, stream), daemon=True)
        reader.start()
        try:
            while (code := poll()) is None:
                time.sleep(ask_s)
            reader.join(QUIET_S)
        finally:
            logs.terminate()
            logs.wait()
            reader.join(QUIET_S)
        stream.close()
    return code
