"""Mirrors metrics to Weights & Biases under the run's id, so that a resumed run continues the same chart."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from xp.tracking.base import WANDB_KEY, TrackedRun


class WandbTracker:
    """One W&B run. It receives the spec and the metrics, but not the console, the code or the command line."""

    def __init__(self, run: TrackedRun) -> None:
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
        # A resumed run repeats the steps since its checkpoint; W&B's own step counter would refuse them.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step, "_timestamp": time})

    def close(self, *, is_success: bool) -> None:
        self._run.finish(exit_code=0 if is_success else 1)
