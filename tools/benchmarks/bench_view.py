"""Measures the start page of `xp view` with 1,000 runs in a real browser: first paint, all rows, all verdicts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.browser import Watched, chromium
from tools.benchmarks.bench_store import fill_runs

NUM_RUNS = 1000
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def main() -> None:
    """Print seconds from the click on the address."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = Path(directory)
        fill_runs(outputs, NUM_RUNS)
        for number in (1, 2):
            _measure(outputs, number)


def _measure(outputs: Path, number: int) -> None:
    command = [sys.executable, "-m", "xp", "view", f"outputs={outputs}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = re.match(r"http://\S+", server.stdout.readline())
            assert address is not None
            with chromium() as browser:
                page = Watched(browser, viewport={"width": 1280, "height": 900}).page
                began = time.monotonic()
                page.goto(address[0])
                page.wait_for_selector("tbody tr")
                paint = page.evaluate(PAINT) / 1000
                first = time.monotonic() - began
                while page.evaluate("XP.known().rows") < NUM_RUNS:
                    time.sleep(0.02)
                rows = time.monotonic() - began
                while page.evaluate("XP.known().left"):
                    time.sleep(0.1)
                verdicts = time.monotonic() - began
        finally:
            server.terminate()
    print(
        f"server {number}: first paint {paint:.2f} s, first rows {first:.2f} s, {NUM_RUNS:,} rows {rows:.2f} s,"
        f" all verdicts {verdicts:.1f} s, load {os.getloadavg()[0]:.1f} (bar: first paint 1 s)"
    )


if __name__ == "__main__":
    main()
