"""A wall clock that jumps, for the processes that are told so."""

from __future__ import annotations

from pathlib import Path

CLOCK = """
import os, time
_time, _time_ns = time.time, time.time_ns
def _jumped():
    try:
        with open(os.environ["XP_CHAOS_CLOCK"]) as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0
time.time = lambda: _time() + _jumped()
time.time_ns = lambda: _time_ns() + int(_jumped() * 1e9)
"""
"""A `sitecustomize` by which the wall clock of every Python process jumps when a file says so."""


class Clock:
    """A wall clock that jumps for every Python process with `environ`.

    Args:
        directory: is made.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._file = directory / "jump"
        self._file.write_text("0")
        (directory / "sitecustomize.py").write_text(CLOCK)
        self.environ = {"PYTHONPATH": str(directory), "XP_CHAOS_CLOCK": str(self._file)}

    def jump(self, by_s: float) -> None:
        """Move it so far from the real time."""
        self._file.with_suffix(".new").write_text(str(by_s))
        self._file.with_suffix(".new").rename(self._file)
