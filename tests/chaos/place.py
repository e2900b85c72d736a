"""A directory in which the embedded default, made small, is run as a user runs it, and what came of it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

REWARDS = """
def by_length(outcome, messages):
    words = [len(message["content"] or "") for message in messages if message["role"] == "assistant"]
    return 0.1 * outcome.num_malformed + 0.001 * sum(words)
"""
"""An untrained model wins nothing, and equal rewards teach nothing: this one tells its episodes apart."""
SMALL = (
    "name=chaos",
    "seed=1",
    "env.reward_fn=my_rewards:by_length",
    "env.train.num_tasks=8",
    "env.held_out.num_tasks=4",
    "model.build.warmup_steps=2",
    "training.prompts_per_step=2",
    "training.group_size=4",
    "training.micro_batch_size=8",
    "training.num_steps=3",
    "training.checkpoint_every=1",
    "evaluation.before_training=false",
)
CHANGES = ("time", "attempt", "run", "training/logprob_gap")
"""Beginnings of the names of metrics that may differ between two runs of one spec; the gap is rounding, which depends
on the episodes that were computed together."""
STAGES = ("prepare", "model", "train", "evaluate")
LIMIT_S = 1200.0
"""Time limit of one attempt, on a machine that has other work."""


@dataclass
class Place:
    """One run's directory.

    Args:
        root: is made.
        more: overrides beside SMALL.
        environ: variables beside this process's.
    """

    root: Path
    more: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    num_hits: int = 0
    """Faults that came before the run's end."""
    next_attempt: int = 1
    """Number of the attempt that was started last."""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / "my_rewards.py").write_text(REWARDS)

    def start(self, *words: str, **environ: str) -> psutil.Popen:
        """`python -m xp` with these words; its output is added to `screen.txt`."""
        with (self.root / "screen.txt").open("ab") as screen:
            return psutil.Popen(
                [sys.executable, "-m", "xp", *words],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=screen,
                stderr=screen,
                env={**os.environ, **self.environ, **environ},
                start_new_session=True,
            )

    def begin(self, **environ: str) -> psutil.Popen:
        """The first attempt."""
        return self.start(*SMALL, *self.more, **environ)

    def go_on(self) -> psutil.Popen:
        """The next attempt; the first one again where nothing is on record."""
        run, record = self.run(), self.record()
        self.next_attempt = 1 + len((record or {}).get("attempts", []))
        return self.begin() if run is None or record is None else self.start(f"resume={run.name}")

    def record(self) -> dict[str, Any] | None:
        """`run.json` of the newest run."""
        run = self.run()
        file = None if run is None else run / "run.json"
        return None if file is None or not file.is_file() else dict(json.loads(file.read_text()))

    def num_attempts(self) -> int:
        return len((self.record() or {}).get("attempts", []))

    def stages_left(self) -> list[str]:
        """Stages that no attempt has finished; the last where all are done."""
        attempts = (self.record() or {}).get("attempts", [])
        stages = [stage for attempt in attempts for stage in attempt["stages"]]
        done = {stage["name"] for stage in stages if stage["status"] in ("succeeded", "skipped")}
        return [name for name in STAGES if name not in done] or [STAGES[-1]]

    def run(self) -> Path | None:
        """The newest run."""
        return max((self.root / "outputs/runs").glob("chaos-*"), key=lambda path: path.name, default=None)

    def stage_began(self, name: str, attempt: int = 1) -> bool:
        """Whether a stage has written its first line."""
        run = self.run()
        return run is not None and (run / f"attempt_{attempt}" / name / "log.txt").is_file()

    def processes(self) -> list[psutil.Process]:
        """Everything that runs in the directory, whoever its parent is."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid != os.getpid() and process.cwd().startswith(str(self.root)):
                    found.append(process)
        return found

    def quiet(self, limit_s: float = 60.0) -> bool:
        """Whether nothing runs here, at the latest when the time is over."""
        deadline = time.monotonic() + limit_s
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def stop(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def screen(self) -> str:
        file = self.root / "screen.txt"
        return file.read_text(errors="replace") if file.exists() else ""

    def result(self) -> dict[str, Any]:
        """Results that no fault may change: weights, held-out results, the reward and loss of every step."""
        run = self.run()
        assert run is not None
        results = max(run.glob("attempt_*/evaluate/evaluation.json"), key=lambda file: int(file.parts[-3][8:]))
        steps: dict[int, dict[str, Any]] = {}
        for line in (run / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            if values["stage"] == "train":
                steps[values["step"]] = {name: value for name, value in values.items() if not name.startswith(CHANGES)}
        return {
            "weights": hashlib.sha256((run / "model/model.safetensors").read_bytes()).hexdigest(),
            "held out": json.loads(results.read_text())["results"],
            "steps": steps,
        }


def ended(process: psutil.Popen, limit_s: float = LIMIT_S) -> int | None:
    """The exit code; None where it had to be killed after the limit."""
    try:
        return int(process.wait(limit_s))
    except psutil.TimeoutExpired:
        return None
