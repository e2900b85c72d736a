"""W&B and TensorBoard. A tracker's package is imported when the tracker is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xp.execution.tracking.base import WANDB_KEY, Opener, TrackedRun
from xp.lib.atomic import write_atomically


class WandbTracker:
    """One W&B run under the run's id, so that a resumed run continues the same chart.

    It receives the spec and the metrics, but not the console, the code or the command line.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        settings = wandb.Settings(
            api_key=run.secrets.get(WANDB_KEY),
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_stats=True,
            init_timeout=60,
        )
        self._run = wandb.init(
            project=run.project,
            id=run.run_id,
            name=run.run_id,
            config=dict(run.config),
            dir=str(run.directory),
            resume="allow",
            settings=settings,
        )
        self._file = run.directory / "wandb" / "last_time"
        self.last_time = self._latest = (
            float(self._file.read_text()) if self._file.exists() else 0.0
        )
        # A resumed run repeats the steps since its checkpoint; W&B's own step counter would refuse them.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step, "_timestamp": time})
        self._latest = max(self._latest, time)
        if not self._run.disabled:
            write_atomically(self._file, str(self._latest))

    def close(self, *, is_success: bool) -> None:
        self._run.finish(exit_code=0 if is_success else 1)


class TensorboardTracker:
    """Event files below the run, without torch and TensorFlow; an attempt is a curve of its own, from step 1."""

    last_time = 0.0

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


def openers(names: Sequence[str]) -> dict[str, Opener]:
    """Functions that open each tracker."""
    trackers: Mapping[str, Opener] = {"wandb": WandbTracker, "tensorboard": TensorboardTracker}
    return {name: trackers[name] for name in names}
