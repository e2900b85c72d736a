"""Checks regularly that a server that a run started still answers, and replaces it if not.

Without replacement, a tool that blocks the server's loop, or a process killed for memory, would make all later episodes
void; with it, only the open ones are lost.
"""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Protocol

from xp.errors import XpError
from xp.lib.exchange import direct_opener

LOGGER = logging.getLogger(__name__)
PING_S = 5.0


class Replaceable(Protocol):
    """A server that can be started again at its own address."""

    serve: str
    url: str

    def is_alive(self) -> bool: ...

    def replace(self) -> None:
        """Replaces the server; raises XpError if it does not start again."""


class OwnServerWatch:
    """Thread that checks one server, from `start` until `stop`.

    Args:
        server: the server; the thread replaces it.
        headers: headers of each check.
        limit_s: seconds that an answer may take, the same as for a call.
        ping_s: seconds between two checks.
    """

    def __init__(
        self, server: Replaceable, headers: Mapping[str, str], limit_s: float, ping_s: float | None = None
    ) -> None:
        self._server, self._headers, self._limit_s = server, headers, limit_s
        self._ping_s = PING_S if ping_s is None else ping_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch of {server.serve}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the watch; no replacement begins afterwards."""
        self._ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout_s)

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()

    def _run(self) -> None:
        while not self._ended.wait(self._ping_s):
            reason = self._fault()
            if reason is None or self._ended.is_set():
                continue
            LOGGER.warning(
                "the server of %s %s; it is started again, and its open episodes are lost", self._server.serve, reason
            )
            try:
                self._server.replace()
            except XpError as error:
                if not self._ended.is_set():
                    LOGGER.error("%s", error)
                return

    def _fault(self) -> str | None:
        if not self._server.is_alive():
            return "has ended"
        request = urllib.request.Request(f"{self._server.url}/health", headers=dict(self._headers))
        try:
            with _DIRECT.open(request, timeout=self._limit_s):
                return None
        except urllib.error.HTTPError:
            return None
        except TimeoutError:
            return f"has answered nothing for {self._limit_s:g} s"
        except OSError as error:
            is_late = isinstance(getattr(error, "reason", None), TimeoutError)
            return f"has answered nothing for {self._limit_s:g} s" if is_late else None


_DIRECT = direct_opener()
