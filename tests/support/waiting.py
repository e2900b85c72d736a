"""Waiting for a condition, and how long it may take on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

FAR_BEYOND_S = 250.0
"""Longer than a short deadline takes on any machine, and much shorter than what would wait without it."""


def wait_for(condition: Callable[[], bool], limit_s: float = FAR_BEYOND_S) -> bool:
    until = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
