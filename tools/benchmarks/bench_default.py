"""The embedded default as a newcomer runs it: minutes, memory and held-out reward for seeds 1, 2 and 3."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from xp.execution.held_out import held_out

SEEDS = (1, 2, 3)


def main() -> None:
    """Seed 1 starts with nothing cached; seeds 2 and 3 find the task set and the model there."""
    with tempfile.TemporaryDirectory() as directory:
        for seed in SEEDS:
            wall_s, peak_gb = _run(seed, Path(directory))
            newest = max(
                (Path(directory) / "outputs/runs").iterdir(), key=lambda run: run.stat().st_ctime
            )
            before, after = (held_out(newest)[name] for name in ("before", "after"))
            if seed == SEEDS[0]:
                kind = "first run, nothing cached"
            else:
                kind = "later run"
            print(
                f"seed {seed} ({kind}): {wall_s / 60:.1f} min, peak {peak_gb:.2f} GB, held-out reward"
                f" {before.reward_mean:.3f} -> {after.reward_mean:.3f}"
                f" (± {after.reward_stderr or 0.0:.3f}, {after.num_scored} episodes)",
                flush=True,
            )


def _run(seed: int, directory: Path) -> tuple[float, float]:
    """Wall seconds, and the peak of the whole tree's resident memory in GB."""
    began = time.monotonic()
    log = (directory / f"seed-{seed}.log").open("wb")
    process = psutil.Popen(
        [sys.executable, "-m", "xp", f"seed={seed}"], cwd=directory, stdout=log, stderr=log
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(process, peak), daemon=True)
    watcher.start()
    code = process.wait()
    wall_s = time.monotonic() - began
    watcher.join()
    if code:
        raise SystemExit((directory / f"seed-{seed}.log").read_text()[-3000:])
    return wall_s, peak[0] / 1e9


def _watch(process: psutil.Process, peak: list[int]) -> None:
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        total = 0
        for one in [process, *process.children(recursive=True)]:
            try:
                total += one.memory_info().rss
            except psutil.Error:
                continue
        peak[0] = max(peak[0], total)
        time.sleep(0.5)
