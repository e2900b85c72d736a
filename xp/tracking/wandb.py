"""Mirrors metrics to Weights & Biases; the run's id is W&B's, so that a resumed run goes on in the same chart."""

from __future__ import annotations

from collections.abc import Mapping

import wandb

from xp.tracking.base import WANDB_KEY, TrackedRun


class WandbTracker:
    """One W&B run. It sees the spec and the metrics; console, code and command line stay here."""

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
        # A resume repeats steps since its checkpoint: W&B's own counter must not refuse them.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step, "_timestamp": time})

    def close(self, *, is_success: bool) -> None:
        self._run.finish(exit_code=0 if is_success else 1)
