"""metrics.jsonl: one JSON object per line, appended by a run's stages, sent to trackers by the control plane."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xp.episode.metric_table import check_names
from xp.errors import ExitCode
from xp.lib.atomic import append_line
from xp.lib.reading import is_count, objects_of


class MetricsFile:
    """Appends lines to a run's metrics file; after `write`, the line is on the disk.

    Args:
        path: the file; attempts of one run share it.
        stage: name of the writing stage.
        attempt: number of the attempt, from 1.
    """

    def __init__(self, path: Path, stage: str, attempt: int) -> None:
        self._path = path
        self._head = {"stage": stage, "attempt": attempt}
        if path.is_file() and path.stat().st_size:
            os.utime(
                path
            )  # an attempt without a step to do writes nothing, but its file is up to date

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line; a value that is not finite is written as null, since JSON has no NaN.

        Raises:
            ValueError: a name has no entry in metrics.toml.
        """
        check_names(metrics)
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        append_line(
            self._path, json.dumps({"step": step, "time": time.time(), **self._head, **values})
        )

    def continue_after(self, step: int) -> None:
        """Called by a training that continues after a rollout step, 0 for none: an attempt without a step to do must
        leave a file too.

        If the file has no line of the training any more, the step gets one without metrics, and stderr says so.

        Raises:
            XpError: as `last_step` does.
        """
        if step < 1 or last_step(self._path) is not None:
            return
        steps = "step 1" if step == 1 else f"steps 1 to {step}"
        print(
            f"xp: {self._path} has no step of this training: the metrics of {steps} are lost",
            file=sys.stderr,
        )
        self.write(step, {})


def read_metrics(path: Path, stage: str) -> list[dict[str, Any]]:
    """The lines of one stage in order of step; if several attempts wrote a step, the last attempt's line.

    Raises:
        XpError: as `metrics_lines` does.
    """
    by_step = {line["step"]: line for line in metrics_lines(path) if line["stage"] == stage}
    return [by_step[step] for step in sorted(by_step)]


def metrics_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file in order; none if there is no file.

    Raises:
        XpError: (RUN_DIR) it is not a regular file of this directory, or not readable.
    """
    if not os.path.lexists(path):
        return
    for line in objects_of(path, ExitCode.RUN_DIR, below=path.parent):
        if isinstance(line.get("stage"), str) and is_count(line.get("step")):
            yield line


def last_step(path: Path) -> int | None:
    """The last rollout step that a training wrote; None if there is none.

    Raises:
        XpError: as `metrics_lines` does.
    """
    return next(
        reversed([int(line["step"]) for line in metrics_lines(path) if line["stage"] == "train"]),
        None,
    )
