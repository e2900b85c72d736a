"""Sends metrics to trackers from the job's machine, for runs without a supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from xp.execution.launchers.node.job_spec import JobSpec
from xp.execution.tracking.base import TrackedRun, openers
from xp.execution.tracking.mirror import Mirror

CLOSE_S = 20.0
"""Seconds for the last lines; a preempted machine ends within half a minute."""


def followed(spec: JobSpec, root: Path, run: Callable[[], int], warn: Callable[[str], None]) -> int:
    """Runs a stage's program while its trackers follow the metrics.

    Args:
        spec: job spec of the stage.
        root: the outputs root.
        run: runs the program and returns its exit code.
        warn: receives a line about a failed tracker; the program goes on.

    Returns:
        The program's exit code.
    """
    tracking = spec.tracking
    if tracking is None:
        return run()
    os.environ.update(tracking.env)
    directory = root.joinpath(*Path(spec.directory).parts[:2])
    tracked = TrackedRun(
        run_id=directory.name,
        attempt=int(spec.env.get("XP_ATTEMPT", "1")),
        project=tracking.project,
        config=tracking.config,
        directory=directory,
        secrets={name: os.environ[name] for name in tracking.secrets if name in os.environ},
    )
    metrics = directory / "metrics.jsonl"
    with Mirror(metrics, tracked, openers(tracking.names), warn, close_timeout_s=CLOSE_S) as mirror:
        code = run()
        mirror.is_success = code == 0
    return code
