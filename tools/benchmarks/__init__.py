"""Benchmarks: they print figures and have no part in a run."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple


class Spent(NamedTuple):
    """A command of xp, and what it took."""

    cpu_s: float
    wall_s: float
    done: subprocess.CompletedProcess[str]


def spent(*words: str, **options: Any) -> Spent:
    """Runs `python -m xp` with these words; options are those of subprocess.run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    command = [sys.executable, "-m", "xp", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = time.monotonic() - began
    return Spent(
        (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime), wall_s, done
    )


class Rate(NamedTuple):
    """Pace of some work."""

    per_second: float
    per_cpu_second: float
    """By the CPU time of this process; other processes do not count."""


class Clock:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    def rate(self, count: int) -> Rate:
        return Rate(
            count / (time.monotonic() - self._wall), count / (time.process_time() - self._cpu)
        )
