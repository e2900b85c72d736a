"""TensorBoard: event files below the run, without torch and TensorFlow."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from xp.execution.tracking.base import TrackedRun, Tracker


class TensorboardTracker(Tracker):
    """An attempt is a curve of its own, from step 1."""

    packages: ClassVar = {"tensorboard": "tensorboard"}

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(
            str(run.directory / "tensorboard" / f"attempt_{run.attempt}")
        )

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def close(self, *, is_success: bool) -> None:
        self._writer.close()

    @classmethod
    def places(cls, run: Path) -> list[str]:
        place = run / "tensorboard"
        if not place.is_dir():
            return []
        command = f"tensorboard --logdir {shlex.quote(str(place))}"
        return [f"TensorBoard   {place}  (show it: {command})"]
