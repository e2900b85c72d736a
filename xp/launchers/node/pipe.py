"""Copies a process's output to its log, until the process ends."""

from __future__ import annotations

import os
import select
import subprocess

from xp.launchers.node.log import LogStream

IDLE_S = 0.2


def drain(process: subprocess.Popen[bytes], stream: LogStream) -> None:
    """Reads until the process closes its output, or has ended while an orphan keeps it open."""
    assert process.stdout is not None
    source = process.stdout.fileno()
    has_ended = False
    while True:
        ready, _, _ = select.select([source], [], [], 0 if has_ended else IDLE_S)
        if ready:
            data = os.read(source, 65536)
            if not data:
                return
            stream.feed(data)
        elif has_ended:
            return
        else:
            stream.idle()
            # It may have written between the two system calls, so that its end is none of its output.
            has_ended = process.poll() is not None
