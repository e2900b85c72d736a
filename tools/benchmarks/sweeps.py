"""Sweeps of `python -m xp -m` that a benchmark reads: finished runs are read, cut ones resumed, others run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xp.composition import compose_sweep
from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.execution.held_out import HeldOutResult, held_out
from xp.execution.named import run_directory
from xp.execution.sweep import RunState, ledger, spec_digest

REWARD = "reward/avg_raw_reward"


@dataclass(frozen=True)
class TrainedRun:
    """Results of one finished run."""

    name: str
    seed: int
    rewards: tuple[float, ...]
    """Mean reward of the training episodes of each step."""
    before: HeldOutResult
    after: HeldOutResult

    @property
    def area(self) -> float:
        """Area under the training curve, divided by its length: the mean over steps, in units of reward."""
        return sum(self.rewards) / len(self.rewards)


def sweep(words: Sequence[str]) -> None:
    """Run every point of a sweep that is not finished yet, with its output on the screen.

    Raises:
        SystemExit: a run failed; its exit code.
    """
    code = subprocess.run(
        [sys.executable, "-m", "xp", "-m", "--lines", *words], check=False
    ).returncode
    if code:
        raise SystemExit(code)


def trained_runs(words: Sequence[str]) -> list[TrainedRun]:
    """The finished runs of a sweep's points, in their order.

    Raises:
        XpError: a point has no finished run (RUN_DIR), or that run lacks an evaluation or a reward.
    """
    specs = [point.spec for point in compose_sweep(words)]
    ledgers = {outputs: ledger(Path(outputs)) for outputs in {spec.outputs for spec in specs}}
    found = []
    for spec in specs:
        entry = ledgers[spec.outputs].get(spec_digest(spec.model_dump(mode="json")))
        if entry is None or entry.standing is not RunState.DONE:
            raise XpError(
                f"no finished run of {' '.join(words)} with seed {spec.seed}", ExitCode.RUN_DIR
            )
        found.append(_trained(run_directory(Path(spec.outputs), entry.run_id), spec.seed))
    return found


def rewards_of(run: Path) -> tuple[float, ...]:
    """Mean reward of the training episodes of each step. Raises XpError where a step has none."""
    lines = read_metrics(run / "metrics.jsonl", "train")
    rewards = [line.get(REWARD) for line in lines]
    if not rewards or any(reward is None for reward in rewards):
        raise XpError(f"{run}: not every step has a {REWARD}", ExitCode.RUN_DIR)
    return tuple(float(reward) for reward in rewards if reward is not None)


def _trained(run: Path, seed: int) -> TrainedRun:
    results = held_out(run)
    missing = {"before", "after"} - set(results)
    if missing:
        raise XpError(
            f"{run} has no held-out result {' and '.join(sorted(missing))} training",
            ExitCode.RUN_DIR,
        )
    return TrainedRun(run.name, seed, rewards_of(run), results["before"], results["after"])
