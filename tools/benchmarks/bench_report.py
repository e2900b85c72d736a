"""Measures the time and size of a report of a run of 10,000 episodes, by the whole command."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.support.report_run import episode, make_run, write_episodes
from tools.benchmarks import spent

NUM_STEPS = 140
TASKS = 8
SAMPLES = 8
TALK = " ".join(f"Clue {number} points to the cellar." for number in range(40))


def main() -> None:
    """Print seconds and size of the page of one run."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = Path(directory)
        run = make_run(outputs, "run-large", num_steps=NUM_STEPS)
        count = _fill(run)
        # Bytecode is compiled once, as on a user's machine; the second call finds it.
        there = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        there["PYTHONPYCACHEPREFIX"] = str(outputs / "bytecode")
        _, took = (spent("report", "run-large", f"outputs={outputs}", env=there) for _ in range(2))
        size = (run / "report.html").stat().st_size
    load = os.getloadavg()[0]
    print(
        f"report of {count:,} episodes: {took.wall_s:.2f} s, {took.cpu_s:.2f} s CPU, load {load:.1f} (bar: 2 s)"
    )
    print(f"its file: {size / 1e6:.2f} MB (bar: 5 MB)")


def _fill(run: Path) -> int:
    episodes = [
        episode(
            "train",
            step,
            index,
            sample,
            (sample * (step + index) % 10) / 10,
            said=f"{step} {index} {sample} {TALK}",
        )
        for step in range(NUM_STEPS)
        for index in range(2, 2 + TASKS)
        for sample in range(SAMPLES)
    ]
    write_episodes(run / "attempt_1/train/trajectories/train.jsonl", episodes)
    return len(episodes) + NUM_STEPS * 8 + 40


if __name__ == "__main__":
    main()
