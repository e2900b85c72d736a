"""One run, end to end, whose engine is lost once: it ends an attempt, and the next one resumes from the checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.launching import ROOT, eventually
from xp.contrib.contracts.jobs import DEADLINE_S
from xp.episode.metrics_file import read_metrics
from xp.execution.record import RunStatus, read_record

STEPS = 8
"""Rollout steps; the loss comes after the second, whose line says that the first one's checkpoint is whole."""
SMALL = (
    "name=lost",
    "launcher.max_restarts=1",
    "env.train.num_tasks=6",
    "env.held_out=null",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=4",
    f"training.num_steps={STEPS}",
    "training.checkpoint_every=1",
    "training.max_response_tokens=120",
)
"""Overrides of such a run."""


@dataclass(frozen=True)
class Loss:
    """What the record says about the attempt that lost its engine."""

    exit_code: int | None
    log: str


def lose_once(
    directory: Path,
    lose: Callable[[list[psutil.Process]], None],
    *overrides: str,
    program: Sequence[str] = ("-m", "xp"),
) -> Loss:
    """Runs xp, with the processes of its train stage passed to `lose` after two steps; checks that it resumed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with (directory / "screen.txt").open("wb") as screen:
        command = [sys.executable, *program, *SMALL, *overrides, f"outputs={directory}"]
        process = psutil.Popen(
            command, cwd=directory, env=environ, stdout=screen, stderr=subprocess.STDOUT
        )
    try:
        metrics: list[Path] = []

        def has_trained() -> bool:
            metrics[:] = directory.glob("runs/*/metrics.jsonl")
            return process.poll() is not None or any(
                len(read_metrics(file, "train")) > 1 for file in metrics
            )

        eventually(has_trained, 6 * DEADLINE_S)
        if process.poll() is None:
            lose(process.children(recursive=True))
        code = process.wait(6 * DEADLINE_S)
    finally:
        for one in (process, *process.children(recursive=True)) if process.is_running() else ():
            one.kill()
    assert code == 0, (directory / "screen.txt").read_text()[-4000:]
    run = metrics[0].parent
    first, second = read_record(run).attempts
    stages = {stage.name: stage for stage in first.stages}
    assert stages["train"].status == RunStatus.FAILED
    assert {stage.status for stage in second.stages} == {RunStatus.CACHED, RunStatus.SUCCEEDED}
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert [line["attempt"] for line in lines] == sorted(line["attempt"] for line in lines)
    assert {line["attempt"] for line in lines} == {1, 2}
    return Loss(stages["train"].exit_code, (run / "attempt_1/train/log.txt").read_text())


def process_with(word: str, tree: list[psutil.Process]) -> psutil.Process:
    """The first process with this word in its command line; the guard, which has the job's, is left out."""
    lines = {one: one.cmdline() for one in tree if one.status() != psutil.STATUS_ZOMBIE}
    return next(
        one
        for one, words in lines.items()
        if any(word in part for part in words)
        and not any(part.endswith("xp/lib/processes.py") for part in words)
    )
