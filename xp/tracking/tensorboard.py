"""Mirrors metrics to TensorBoard event files below the run, without torch and without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from xp.tracking.base import TrackedRun


class TensorboardTracker:
    """`tensorboard --logdir outputs/runs` shows all runs; an attempt is a curve of its own."""

    def __init__(self, run: TrackedRun) -> None:
        self._writer = EventFileWriter(str(run.directory / "tensorboard" / f"attempt_{run.attempt}"))

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))

    def close(self, *, is_success: bool) -> None:
        del is_success
        self._writer.close()
