"""Measures the lists of a large outputs directory: 2,000 runs of ten steps, 200 task sets, by whole commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import yaml

from tests.support.report_run import make_run
from tools.benchmarks import spent
from xp.composition import compose
from xp.execution.record import read_record, write_record
from xp.planning.stages import prepare_config
from xp.tasks.prepare import prepare

NUM_RUNS = 2000
NUM_SETS = 200
COMMANDS = (("runs", "list"), ("runs", "compare"), ("tasks", "list"))
RATES = (0.0007, 0.0003, 0.0001, 0.00003)


def main() -> None:
    """Print seconds, CPU seconds and memory of each command."""
    with tempfile.TemporaryDirectory() as directory:
        outputs = Path(directory)
        fill_runs(outputs, NUM_RUNS)
        with contextlib.redirect_stdout(io.StringIO()):
            for number in range(NUM_SETS):
                words = (
                    "env=multiply",
                    f"env.train.num_tasks={number + 1}",
                    "env.held_out.num_tasks=1",
                )
                prepare(prepare_config(compose(words)), os.environ, outputs)
        for command in COMMANDS:
            took = spent(*command, f"outputs={outputs}")
            lines = len(took.done.stdout.splitlines())
            print(
                f"{' '.join(command)}: {took.wall_s:.2f} s, {took.cpu_s:.2f} s CPU, {lines:,} lines,"
                f" load {os.getloadavg()[0]:.1f} (bar: 2 s)"
            )


def fill_runs(outputs: Path, num_runs: int) -> None:
    """Runs of four learning rates and many seeds."""
    first = make_run(outputs, "run-0000", num_steps=10)
    spec = yaml.safe_load((first / "spec.yaml").read_text())
    record = read_record(first)
    for number in range(1, num_runs):
        run = first.with_name(f"run-{number:04}")
        shutil.copytree(first, run)
        rate = RATES[number % len(RATES)]
        seed = number // len(RATES)
        own = {**spec, "seed": seed, "training": {**spec["training"], "learning_rate": rate}}
        # The listings read the spec from the plan; spec.yaml is the same for all runs here.
        (run / "attempt_1/plan.json").write_text(json.dumps({"spec": own}))
        write_record(run, type(record)(**{**vars(record), "run_id": run.name}))


if __name__ == "__main__":
    main()
