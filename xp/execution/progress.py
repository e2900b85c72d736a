"""Progress of a run's training or fine-tuning, from its metrics and its record."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.execution.leaderboard import spec_of
from xp.execution.record import RunRecord, RunStatus
from xp.lib.reading import is_count, is_finite, json_of
from xp.worker.diagnosis.history import Facts, History, Points, points_of
from xp.worker.places import NUM_UPDATES

REWARD: Final = "reward/avg_raw_reward"
RECENT: Final = 5
"""Number of last steps whose mean time predicts the time left."""
SFT: Final = "sft"


def averaged(values: Sequence[float], most: int) -> list[float]:
    """The values; if there are more than `most`, the means of this number of equal parts."""
    size = min(most, len(values))
    edges = [round(at * len(values) / max(1, size)) for at in range(size + 1)]
    return [fmean(values[begin:end]) for begin, end in pairwise(edges)]


@dataclass(frozen=True)
class RunProgress:
    """Progress of one run."""

    is_tuning: bool
    """True for a fine-tuning, whose steps are updates."""
    step: int
    num_steps: int | None
    curves: tuple[tuple[str, Points, str], ...] = ()
    """Name, points, and the unit that is counted, of each curve with points."""
    step_s: float | None = None
    """Seconds of a step. None means that they are not known."""
    at: float = 0.0
    """Time of the last finished step, in seconds since the epoch."""

    @property
    def share(self) -> float | None:
        """Completed share of the steps, from 0 to 1."""
        if self.num_steps:
            return min(1.0, self.step / self.num_steps)
        return None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step ends. None means that they are not known."""
        if self.step_s is None or self.num_steps is None:
            return None
        left = self.step_s * (self.num_steps - self.step)
        if self.at:
            left -= min(self.step_s, time.time() - self.at)
        return max(0.0, left)

    @property
    def text(self) -> str:
        """The step that it is at, such as `step 3 of 10`."""
        unit = "update" if self.is_tuning else "step"
        if self.num_steps:
            return f"{unit} {self.step} of {self.num_steps}"
        return f"{unit} {self.step}"


def progress_of(run: Path, record: RunRecord) -> RunProgress | None:
    """Progress of the training, or of the fine-tuning before it. None means that the run has neither."""
    lines = {stage: read_metrics(run / "metrics.jsonl", stage) for stage in ("train", SFT)}
    stages = {
        stage.name: stage.status for attempt in record.attempts[-1:] for stage in attempt.stages
    }
    is_tuned = stages.get(SFT) in (None, RunStatus.SUCCEEDED, RunStatus.CACHED)
    if lines["train"] or ("train" in stages and is_tuned):
        total = record.num_steps or _planned_steps(run, record)
        return _progress(run, lines["train"], total, is_tuning=False)
    if lines[SFT] or SFT in stages:
        return _progress(run, lines[SFT], _num_updates(run, record), is_tuning=True)
    return None


def _progress(
    run: Path, lines: Sequence[Mapping[str, Any]], total: int | None, *, is_tuning: bool
) -> RunProgress:
    if is_tuning:
        seconds = "time/update_s"
        curves = [("loss", points_of(lines, "training/loss"), "update")]
    else:
        during = read_metrics(run / "metrics.jsonl", "evaluate_during")
        held_out = points_of(during, f"evaluation/during/{REWARD}")
        seconds = "time/step_s"
        curves = [
            ("reward", points_of(lines, REWARD), "step"),
            ("held-out", held_out, "evaluation"),
        ]
    last = lines[-1] if lines else {"step": 0}
    times = [value for _, value in points_of(lines[-RECENT:], seconds)]
    known = tuple(curve for curve in curves if curve[1])
    step_s = fmean(times) if times else None
    at = 0.0
    if is_finite(last.get("time")):
        at = float(last["time"])
    return RunProgress(is_tuning, last["step"], total, known, step_s, at)


def _planned_steps(run: Path, record: RunRecord) -> int | None:
    """Steps of the spec. None means that they follow from the epochs, or the spec cannot be read."""
    with suppress(XpError, LookupError, TypeError):
        steps = spec_of(run, len(record.attempts))["training"]["num_steps"]
        return steps if is_count(steps) else None
    return None


def _num_updates(run: Path, record: RunRecord) -> int | None:
    """Updates of a fine-tuning, as its stage counted them. None means that it has not yet."""
    with suppress(XpError):
        file = run / f"attempt_{len(record.attempts)}" / SFT / NUM_UPDATES
        updates = json_of(file, ExitCode.RUN_DIR, below=run)
        return updates if is_count(updates) else None
    return None


def metrics_history(run: Path, record: RunRecord) -> History:
    """The run's metrics and facts of its spec, for the rules of xp.worker.diagnosis; trajectories may be large."""
    file = run / "metrics.jsonl"
    lines, during = (read_metrics(file, stage) for stage in ("train", "evaluate_during"))
    try:
        spec = spec_of(run, len(record.attempts))
        if spec["training"]["num_steps"] is None:  # epochs: as many as the training found
            spec["training"]["num_steps"] = record.num_steps
        return History(lines, Facts.of_spec(spec), during)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise XpError(
            f"{run} cannot be read: {type(error).__name__} {error}", ExitCode.RUN_DIR
        ) from error
