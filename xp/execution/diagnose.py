"""Reads a run's directory for the rules of xp.worker.diagnosis: metrics, facts of its spec, and use of tools."""

from __future__ import annotations

from pathlib import Path

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode, XpError
from xp.execution.leaderboard import spec_of
from xp.execution.record import RunRecord
from xp.worker.diagnosis.history import Facts, History


def metrics_history(run: Path, record: RunRecord) -> History:
    """Reads the history without the trajectories, which may be large."""
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
