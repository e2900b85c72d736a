"""Results of a run on the held-out tasks, as its evaluations wrote them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xp.errors import ExitCode, XpError
from xp.reading import json_of
from xp.runs.record import RunRecord, read_record
from xp.tasks.held_out import overlap_label

NAMES = ("before", "after")
"""The untrained model and the trained one."""


@dataclass(frozen=True)
class HeldOutResult:
    """One model's result."""

    reward_mean: float
    reward_stderr: float | None
    """None: of one episode."""
    perfect_share: float | None
    num_scored: int | None
    num_void: int | None
    pass_share: float | None = None
    """Share of rewards of at least `pass_threshold`; None: of an earlier version, which knew none."""
    pass_threshold: float | None = None
    num_tasks: int | None = None
    """None: of an earlier version."""
    label: str = ""
    """Remark on every figure: tasks are trained on as well; empty if they are not."""


def read_held_out(file: Path) -> dict[str, HeldOutResult]:
    """The results of an evaluation.json; raises XpError(RUN_DIR) for what is none."""
    value = json_of(file, ExitCode.RUN_DIR)
    try:
        results = value["results"]
        label = _label(value.get("held_out", {}))
        return {name: replace(_result(results[name]), label=label) for name in NAMES if name in results}
    except (KeyError, TypeError, ValueError) as error:
        raise XpError(f"{file} is not an evaluation: {type(error).__name__} {error}", ExitCode.RUN_DIR) from None


def _label(records: Mapping[str, Any]) -> str:
    num_trained_on, num_held_out = (
        sum(int(record[name]) for record in records.values()) for name in ("num_trained_on", "num_held_out")
    )
    return overlap_label(num_trained_on, num_held_out) if num_trained_on else ""


def held_out(run: Path, record: RunRecord | None = None) -> dict[str, HeldOutResult]:
    """The newest result of each model, over a run's attempts. Raises XpError(RUN_DIR) as `read_held_out` does.

    Args:
        run: its directory.
        record: of the run; None: it is read.
    """
    found: dict[str, HeldOutResult] = {}
    for file in evaluation_files(run, record):
        found |= read_held_out(file)
    return found


def evaluation_files(run: Path, record: RunRecord | None = None) -> list[Path]:
    """Every evaluation.json of a run; those of attempts that trained come last, so that they are the run's result.

    An attempt that only evaluated (`evaluate run=RUN`) may have played other tasks, or an earlier checkpoint.
    """
    try:
        record = record or read_record(run)
    except XpError:
        trained: set[str] = set()
    else:
        attempts = [one for one in record.attempts if any(stage.name == "train" for stage in one.stages)]
        trained = {f"attempt_{one.number}" for one in attempts}
    files = run.glob("attempt_*/evaluate/evaluation.json")
    return sorted(files, key=lambda file: (file.parents[1].name in trained, file.lstat().st_mtime))


def _result(value: Mapping[str, Any]) -> HeldOutResult:
    mean = _number(value["reward_mean"])
    if mean is None:
        raise ValueError("reward_mean is null")
    counts = [value.get(name) for name in ("num_scored", "num_void", "num_tasks")]
    if any(count is not None and (not isinstance(count, int) or isinstance(count, bool)) for count in counts):
        raise ValueError("a number of episodes is not a whole number")
    stderr, share = _number(value.get("reward_stderr")), _number(value.get("perfect_share"))
    passes, threshold = _number(value.get("pass_share")), _number(value.get("pass_threshold"))
    return HeldOutResult(mean, stderr, share, counts[0], counts[1], passes, threshold, counts[2])


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a reward is not a finite number")
    return float(value)
