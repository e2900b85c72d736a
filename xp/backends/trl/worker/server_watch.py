"""Watches an engine's server while a stage uses it, and ends one that hangs: whoever waits for it then fails at once.

Neither TRL's client nor a broadcast of weights has a deadline of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from typing import Self

from xp.errors import ExitCode

POLL_S = 1.0
LAST_S = 1800.0
"""Seconds from the end of a server to the end of its stage, which may be inside a broadcast that never returns."""


class ServerWatch:
    """A thread beside the stage, for as long as the block lasts.

    Args:
        process: the server; it leads a process group.
        name: of the engine, for messages.
        url: its own, without a path.
        patience_s: how long its health check may stay without an answer.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, url: str, patience_s: float) -> None:
        self._process, self._name, self._url, self._patience_s = process, name, url, patience_s
        self._fault = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def fault(self) -> str:
        """The server's failure in words; empty while it runs."""
        code = self._process.poll()
        return self._fault or ("" if code is None else f"ended with {code}")

    def _watch(self) -> None:
        answered = time.monotonic()
        while not self.fault():
            if self._is_over.wait(POLL_S):
                return
            if is_healthy(self._url, min(10.0, self._patience_s)):
                answered = time.monotonic()
            elif self._process.poll() is None and time.monotonic() - answered > self._patience_s:
                self._fault = f"did not answer for {self._patience_s:g} s and was stopped"
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        if not self._is_over.wait(LAST_S):
            print(
                f"xp: the {self._name} server {self.fault()}, and the stage waits for it", file=sys.stderr, flush=True
            )
            os._exit(ExitCode.ENGINE)


def is_healthy(url: str, timeout_s: float) -> bool:
    """Returns whether the server reports that it can generate."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError), opener.open(f"{url}/health", timeout=timeout_s) as response:
        return bool(response.status == 200)
    return False
