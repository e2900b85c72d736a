"""Metrics of a recorded training, and faults put into them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.evaluations import leave_evaluation
from tests.support.sections import replace
from tests.support.sweep_runs import leave_run, spec
from xp.episode.metrics_file import read_metrics
from xp.execution.record import RunStatus, read_record, write_record

RECORDED = Path(__file__).parents[1] / "recorded"
Line = dict[str, Any]


def good(number: int = 36) -> list[Line]:
    """A training of the embedded default, as its stage wrote it."""
    return read_metrics(RECORDED / "whodunit_mini.jsonl", "train")[:number]


def changed(lines: list[Line], **metrics: Callable[[float], float]) -> list[Line]:
    """Metrics with each of these replaced by a function of the run's progress, from 0 to 1."""
    names = {name: name.replace("__", "/") for name in metrics}
    last = len(lines) - 1
    return [
        {**line, **{names[name]: value(at / last) for name, value in metrics.items()}}
        for at, line in enumerate(lines)
    ]


FAULTS: dict[str, tuple[str, list[Line]]] = {
    "other weights": ("engine_gap", changed(good(), training__logprob_gap=lambda _: 0.4)),
    "constant reward": (
        "equal_groups",
        changed(
            good(),
            reward__groups_without_variance=lambda _: 1.0,
            reward__avg_raw_reward=lambda _: 0.0,
            reward__avg_pass_at_8=lambda _: 0.0,
            training__entropy=lambda _: 0.1,
        ),
    ),
    "too easy": (
        "saturated",
        changed(
            good(),
            reward__groups_without_variance=lambda _: 0.9,
            reward__avg_raw_reward=lambda _: 1.0,
        ),
    ),
    "limit too low": ("truncation", changed(good(), episodes__truncated=lambda at: 0.6 * at)),
    "another dialect": ("malformed", changed(good(), episodes__malformed=lambda _: 0.8)),
    "hacked": ("hacked", changed(good(), reward__avg_pass_at_8=lambda _: 0.2)),
    "no exploration": (
        "entropy",
        changed(
            good(),
            training__entropy=lambda at: 0.6 * (1 - at) ** 6,
            reward__avg_raw_reward=lambda _: 0.3,
        ),
    ),
    "far from the reference": (
        "kl",
        changed(good(), training__kl=lambda at: 30.0 if at > 0.8 else 0.02),
    ),
    "a spike": (
        "gradient",
        changed(good(), training__grad_norm=lambda at: 40.0 if 0.5 < at < 0.55 else 0.2),
    ),
    "a failing environment": ("void", changed(good(), episodes__void=lambda at: 0.15 * at)),
}


MIXED = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def leave(
    outputs: Path,
    before: Sequence[float],
    after: Sequence[float],
    status: RunStatus = RunStatus.SUCCEEDED,
) -> Path:
    """A run with the recorded metrics, and these rewards of its held-out tasks."""
    run = leave_run(spec(outputs), "R", status, after=0.5)
    shutil.copy(RECORDED / "whodunit_mini.jsonl", run / "metrics.jsonl")
    sides = (
        {f"e/test/{number}": [reward] for number, reward in enumerate(one)}
        for one in (before, after)
    )
    leave_evaluation(run, before=next(sides), after=next(sides))
    return run


def progressing(outputs: Path, status: RunStatus = RunStatus.SUCCEEDED) -> Path:
    """A run with 36 of 72 steps."""
    run = leave(outputs, MIXED, MIXED, status)
    record = read_record(run)
    attempt = replace(
        record.attempts[0], training={"epochs": None, "num_steps": 72, "num_tasks": 8}
    )
    write_record(run, replace(record, attempts=(attempt,)))
    return run
