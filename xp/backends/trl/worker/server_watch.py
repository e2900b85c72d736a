"""Watches an engine's server while a stage uses it, and ends a server that hangs, so that waiting clients fail at once.

TRL's client and a broadcast of weights have no deadline of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self
from urllib.error import HTTPError

from xp.errors import ExitCode
from xp.exchange import direct_opener

POLL_S = 1.0
PROBE_S = 10.0
"""Deadline of one probe."""
LAST_S = 1800.0
"""Seconds from the end of a server to the forced end of its stage, which may be in a broadcast that never returns."""
HEALTH = "/health"


class Address(NamedTuple):
    """Address of a server, with its key and the path of the probe."""

    url: str
    """URL without a path."""
    key: str
    probe: str
    """Path that the engine itself answers, not the HTTP process in front of it."""


class ServerWatch:
    """Context manager: a thread that watches a server.

    Args:
        process: process of the server, which leads a process group.
        name: name of the engine, for messages.
        address: address of the server.
        patience_s: returns the seconds that the probe may currently be unanswered.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], name: str, address: Address, patience_s: Callable[[], float]
    ) -> None:
        self._process, self._name, self._address, self._patience_s = process, name, address, patience_s
        self._fault = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def fault(self) -> str:
        """Text of the server's failure; empty while it runs."""
        code = self._process.poll()
        return self._fault or ("" if code is None else f"ended with {code}")

    def until_lost(self, is_over: threading.Event) -> str:
        """Waits for the server's failure; returns its text, empty if the use of the server ended first."""
        answered = time.monotonic()
        while not (fault := self.fault()):
            if is_over.wait(POLL_S):
                return ""
            patience_s = self._patience_s()
            if is_answering(self._address, min(PROBE_S, patience_s)):
                answered = time.monotonic()
            elif self._process.poll() is None and time.monotonic() - answered > patience_s:
                self._fault = f"did not answer for {patience_s:g} s and was stopped"
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        return fault

    def _watch(self) -> None:
        if fault := self.until_lost(self._is_over):
            end_stage(f"the {self._name} server {fault}", self._is_over)


def end_stage(fault: str, is_over: threading.Event) -> None:
    """Ends this process if it still runs long after the end of its server."""
    if not is_over.wait(LAST_S):
        print(f"xp: {fault}, and the stage waits for it", file=sys.stderr, flush=True)
        os._exit(ExitCode.ENGINE)


def is_answering(address: Address, timeout_s: float) -> bool:
    """Returns whether the engine answers its probe; any answer counts, also of a server without this path."""
    request = urllib.request.Request(address.url + address.probe, headers={"Authorization": f"Bearer {address.key}"})
    opener = direct_opener()
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except HTTPError as error:
        return error.code == 404
    except OSError:
        return False
