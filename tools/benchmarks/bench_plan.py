"""Measures planning: CPU seconds of `plan`, and of a sweep of 100 points."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile

REPEATS = 5


def main() -> None:
    """Print the median CPU time of each command, in seconds."""
    for label, arguments, bar in (
        ("plan", ["plan"], 1.0),
        ("plan of a 100-point sweep", ["plan", "-m", "seed=range(0,100)"], 10.0),
        ("a refused command line", ["plan", "training.lerning_rate=1"], 1.0),
    ):
        times = [_cpu_seconds(arguments) for _ in range(REPEATS)]
        print(f"{label}: {statistics.median(times):.2f} s CPU, median of {REPEATS} (bar: {bar:g} s)")


def _cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "xp", *arguments], cwd=directory, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
