"""Measures planning: CPU seconds of `plan`, and of a sweep of 100 points."""

from __future__ import annotations

import statistics
import tempfile

from tools.benchmarks import spent

REPEATS = 5


def main() -> None:
    """Print the median CPU time of each command, in seconds."""
    for label, arguments, bar in (
        ("plan", ["plan"], 1.0),
        ("plan of a 100-point sweep", ["plan", "-m", "seed=range(0,100)"], 10.0),
        ("a refused command line", ["plan", "training.lerning_rate=1"], 1.0),
    ):
        with tempfile.TemporaryDirectory() as directory:
            times = [spent(*arguments, cwd=directory).cpu_s for _ in range(REPEATS)]
        print(
            f"{label}: {statistics.median(times):.2f} s CPU, median of {REPEATS} (bar: {bar:g} s)"
        )
