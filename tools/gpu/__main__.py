"""Runs one experiment: `python -m tools.gpu ENTRY [--rehearse] [--out DIR] [--limit S]`.

It prints one line with the figures of all parts, and writes DIR/ENTRY.json, of which `python -m tools.gpu table DIR`
makes the rows of docs/results.md. With --rehearse it runs the smallest form on a CPU, in the environments of the
trainers' tests (make .venv-vllm/.done .venv-skyrl/.done; for Slime make test-sglang with SLIME_PATH and MEGATRON_PATH);
such figures are in no table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.gpu.entries import ENTRIES, TRL_PYTHON, Entry, Part, merged, rehearsed
from xp.composition import compose
from xp.lib import processes
from xp.planning.memory.fit import memory_json
from xp.spec import RunSpec

STEP = "time/step_s"
GAP = "training/logprob_gap"
REWARD = "reward/avg_raw_reward"
FIRST = {"start_s": "time/start_s", "first_step_s": STEP, "first_gap": GAP, "first_reward": REWARD}
"""Figures of the first step -> their metrics."""
MEDIANS = {
    "step_s": STEP,
    "rollout_s": "time/rollout_s",
    "turns": "environment/turns",
    "void": "episodes/void",
    "tokens": "training/tokens",
    "outside": "training/importance_outside",
    "gpu_utilization": "gpu/utilization",
    "gpu_memory_rollout_gb": "gpu/memory_rollout_gb",
    "gpu_memory_update_gb": "gpu/memory_update_gb",
    "waited_s": "grader/program_waited_s",
    "rows": "grader/program_rows",
}
"""Figures that are medians over the steps after the first -> their metrics."""
ENDING_S = 20
"""Seconds that a part has to end after its time limit."""
BY_HAND = "tools.benchmarks.first_gpu_by_hand"
SMALL = {
    BY_HAND: (
        "xp/worker/tiny",
        "--steps",
        "2",
        "--prompts",
        "2",
        "--micro",
        "8",
        "--cpu",
    ),
    "tools.gpu.drift": ("xp/worker/tiny",),
    "tools.gpu.speculation": ("--cpu", "xp/worker/tiny"),
    "tools.benchmarks.bench_engine": ("--episodes", "16", "--at-once", "8", "--rounds", "1"),
}
"""Arguments of the modules beside xp in a rehearsal."""


def card() -> str | None:
    """Name of the first GPU."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(
            query, capture_output=True, text=True, check=True
        ).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


class PeakMemory(threading.Thread):
    """Largest memory of the first GPU that is in use, in MiB, twice a second until `end`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib = 0
        self._has_ended = threading.Event()

    def run(self) -> None:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._has_ended.wait(0.5):
            answer = subprocess.run(
                query, capture_output=True, text=True, check=False
            ).stdout.split()
            self.mib = max([self.mib, *map(int, answer[:1])])

    def end(self) -> int:
        self._has_ended.set()
        self.join()
        return self.mib


def main(argv: Sequence[str]) -> int:
    """Runs an experiment or prints the table; returns 1 if a part has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("entry", choices=(*ENTRIES, "list", "table"))
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=Path("gpu-results"),
        help="of the results (table)",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--rehearse", action="store_true", help="the smallest form on a CPU")
    parser.add_argument(
        "--limit",
        type=int,
        help="seconds for all parts (the entry's own; in a rehearsal four times that)",
    )
    options = parser.parse_args(argv)
    if options.entry == "list":
        for name, entry in ENTRIES.items():
            print(f"{name:8} {entry.limit_s} s  {entry.question}")
        return 0
    if options.entry == "table":
        print_table(options.directory)
        return 0
    entry = ENTRIES[options.entry]
    gpu = card()
    if gpu is None and not options.rehearse:
        raise SystemExit("no GPU is visible (nvidia-smi); on a CPU: --rehearse")
    out = options.out / (f"rehearsal-{options.entry}" if options.rehearse else options.entry)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"entry": options.entry, "card": None if options.rehearse else gpu}
    limit_s = options.limit or entry.limit_s * (4 if options.rehearse else 1)
    found["parts"] = run_entry(entry, options.rehearse, out, limit_s)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    texts = "; ".join(f"{part['name']}: {text_of(part)}" for part in found["parts"])
    print(f"{options.entry} ({found['card'] or 'rehearsal on a CPU'}): {texts}")
    return int(any(part["exit"] for part in found["parts"]))


def planned_mib(spec: RunSpec) -> int | None:
    """The plan's peak, with the longest episodes; None if it has no estimate."""
    found = memory_json(spec)
    if found is None:
        return None
    return int(max(found["worst"][f"{when}_peak"] for when in ("training", "generation"))) >> 20


def text_of(part: Mapping[str, Any]) -> str:
    """The figures of a part on one line."""
    return ", ".join(f"{name} {value}" for name, value in part.items() if name != "name")


def run_entry(entry: Entry, is_rehearsal: bool, out: Path, limit_s: int) -> list[dict[str, Any]]:
    """Figures of each part; parts for which no time is left have the exit code of a time limit.

    Parts that differ in what a CPU lacks are one rehearsal.
    """
    end = time.monotonic() + limit_s
    found = []
    rehearsals = dict[tuple[str, ...], dict[str, Any]]()
    for part in entry.parts:
        if is_rehearsal and part.is_run:
            words = tuple(sorted(rehearsed(part.words)))
        else:
            words = (part.name,)
        if words in rehearsals:
            found.append(
                {
                    "name": part.name,
                    "exit": rehearsals[words]["exit"],
                    "as": rehearsals[words]["name"],
                }
            )
            continue
        log = out / f"{part.name}.log".replace(" ", "-")
        runs = out / part.name.replace(" ", "-")
        began = time.monotonic()
        memory = None if is_rehearsal else PeakMemory()
        if memory is not None:
            memory.start()
        code = run_part(command_of(part, runs, is_rehearsal=is_rehearsal), log, end - began)
        figures: dict[str, Any] = {
            "name": part.name,
            "exit": code,
            "seconds": round(time.monotonic() - began, 1),
        }
        if memory is not None:
            figures["peak_mib"] = memory.end()
            if part.is_run:
                figures["planned_mib"] = planned_mib(compose(part.words))
        found.append(figures | (figures_of_run(runs) if part.is_run else figures_of_log(log)))
        rehearsals[words] = found[-1]
    return found


def command_of(part: Part, runs: Path, *, is_rehearsal: bool) -> list[str]:
    """The part's command, in this Python; in a rehearsal modules beside xp run in TRL's."""
    if part.is_run:
        words = merged(part.words, {"outputs": str(runs)})
        return [sys.executable, "-m", "xp", *(rehearsed(words) if is_rehearsal else words)]
    words = [*(SMALL[part.module] if is_rehearsal else part.words)]
    if part.module == BY_HAND:
        words += ["--output", str(runs)]
    if part.of is not None:
        words.append(str(runs.with_name(part.of)))
    return [TRL_PYTHON if is_rehearsal else sys.executable, "-m", part.module, *words]


def run_part(command: Sequence[str], log: Path, limit_s: float) -> int:
    """Runs a command with all its processes for at most so many seconds; returns its exit code, 124 at the limit."""
    if limit_s <= 0:
        return 124
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    # The pieces of tools.gpu.build hold no FlashInfer.
    environ = {**os.environ, **offline, "VLLM_USE_FLASHINFER_SAMPLER": "0", "PYTHONUNBUFFERED": "1"}
    if any("slime_on_cpu" in word for word in command):
        environ["PATH"] = f"{Path('tests/engines/slime_on_cpu/gpus').absolute()}:{environ['PATH']}"
    with log.open("wb") as file:
        file.write(f"{' '.join(command)}\n".encode())
        file.flush()
        # Its guard ends all processes of the part, also when this one is killed.
        guard = processes.start(command, ENDING_S, stdout=file, stderr=file, env=environ)
        try:
            return guard.wait(limit_s)
        except subprocess.TimeoutExpired:
            return 124
        finally:
            processes.end(guard)


def figures_of_run(runs: Path) -> dict[str, Any]:
    """Figures of the latest run below an outputs root: its steps, gaps and rewards."""
    files = sorted(runs.glob("runs/*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    if files:
        lines = [json.loads(line) for line in files[-1].read_text().splitlines()]
    else:
        lines = []
    steps = [line for line in lines if STEP in line]
    if not steps:
        return {"steps": 0}
    found: dict[str, Any] = {"steps": len(steps)}
    for name, key in FIRST.items():
        found[name] = steps[0].get(key)
    for name, key in MEDIANS.items():
        values = [line[key] for line in steps[1:] or steps if key in line]
        found[name] = statistics.median(values) if values else None
    found |= {
        f"last_{name}": steps[-1].get(key) for name, key in (("gap", GAP), ("reward", REWARD))
    }
    held_out = [
        line[f"evaluation/after/{REWARD}"] for line in lines if f"evaluation/after/{REWARD}" in line
    ]
    found["held_out"] = held_out[-1] if held_out else None
    starts = [
        line
        for file in runs.glob("runs/*/*/train/log.txt")
        for line in file.read_text().splitlines()
    ]
    found["start"] = next(
        (line.partition("(")[2].rstrip(")") for line in starts if line.startswith("start: ")), None
    )
    return {
        k: float(f"{v:.3g}") if isinstance(v, float) else v
        for k, v in found.items()
        if v is not None
    }


def figures_of_log(log: Path) -> dict[str, Any]:
    """Figures that a program has printed as its last line of JSON."""
    if log.exists():
        lines = [
            line for line in log.read_text(errors="replace").splitlines() if line.startswith("{")
        ]
    else:
        lines = []
    if lines:
        return dict(json.loads(lines[-1]))
    return {}


def print_table(directory: Path) -> None:
    """Rows for docs/results.md, of experiments that had a GPU."""
    print("| experiment | part | figures |\n|---|---|---|")
    for file in sorted(directory.glob("*.json")):
        found = json.loads(file.read_text())
        for part in found["parts"] if found["card"] else ():
            print(f"| {found['entry']}, {found['card']} | {part['name']} | {text_of(part)} |")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
