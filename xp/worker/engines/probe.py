"""Signs that an inference server or another process of a trainer was lost, and the end of its log, for messages."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

from xp.lib.loopback import direct_opener

VLLM_PROBE: Final = "/is_sleeping"
"""Path that vLLM's engine process answers between two steps (0.22 to 0.31); `/health` is answered by its HTTP
process."""
PROBE_S: Final = 10.0
"""Deadline of one probe."""


def is_answering(url: str, key: str | None, timeout_s: float = PROBE_S) -> bool:
    """Returns whether a server answers this URL, or says that it has no such path."""
    request = urllib.request.Request(
        url, headers={} if key is None else {"Authorization": f"Bearer {key}"}
    )
    try:
        with direct_opener().open(request, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except HTTPError as error:
        return error.code == 404
    except OSError:
        return False


def tail(log: Path) -> str:
    """The end of a server's log, on one line."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    lines = text.splitlines()[-5:]
    return f"the end of {log}: " + " | ".join(lines)


def is_lost_process(error: BaseException) -> bool:
    """Returns whether Ray says that a process, or its node, has ended."""
    from ray import exceptions

    ended = (exceptions.ActorDiedError, exceptions.WorkerCrashedError, exceptions.OutOfMemoryError)
    return isinstance(error, (*ended, exceptions.NodeDiedError, exceptions.LocalRayletDiedError))
