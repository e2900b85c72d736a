"""metrics.jsonl: one JSON object a line, appended by a run's stages, mirrored to trackers by the control plane."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xp.episode.metric_names import check_names


class MetricsFile:
    """Appends lines to a run's metrics file; each is on its way to the disk when `write` returns.

    Args:
        path: the file; attempts of one run share it.
        stage: who writes.
        attempt: of the run, from 1.
    """

    def __init__(self, path: Path, stage: str, attempt: int) -> None:
        self._path = path
        self._head = {"stage": stage, "attempt": attempt}
        if path.is_file() and path.stat().st_size:
            os.utime(path)  # an attempt that finds every step done has nothing to write, and leaves a file that is true

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. A value that is not finite is written as null, since JSON has no NaN.

        Raises:
            ValueError: a name is in no row of xp.episode.metric_table.
        """
        check_names(metrics)
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        line = {"step": step, "time": time.time(), **self._head, **values}
        with self._path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"  # by a writer that was killed
            file.write(b"\n" * is_torn + json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path, stage: str) -> list[dict[str, Any]]:
    """The lines of one stage in order of step; of a step that several attempts wrote, the last one's."""
    by_step: dict[int, dict[str, Any]] = {}
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue  # a line torn by a killed process
        if isinstance(line, dict) and line.get("stage") == stage and isinstance(line.get("step"), int):
            by_step[line["step"]] = line
    return [by_step[step] for step in sorted(by_step)]


TAIL_BYTES = 200_000
"""Read of a file by `last_step`: more than one line has."""


def last_step(path: Path) -> int | None:
    """The last rollout step that a training wrote, from the end of the file; None where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = file.read()
    except OSError:
        return None
    for text in reversed(tail.split(b"\n")):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and line.get("stage") == "train" and isinstance(line.get("step"), int):
            return int(line["step"])
    return None
