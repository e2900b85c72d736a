"""A grader whose module starts a thread, as a client of a network does: it cannot be forked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import Any

_asked: queue.Queue[str] = queue.Queue()
_answered: queue.Queue[str] = queue.Queue()


def _serve() -> None:
    while True:
        _answered.put(_asked.get())


threading.Thread(target=_serve, daemon=True).start()


def grade(answer: str, row: Mapping[str, Any]) -> float:
    _asked.put(answer)
    return float(_answered.get(timeout=30) == row["answer"])
