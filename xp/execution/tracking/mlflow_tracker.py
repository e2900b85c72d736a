"""MLflow: one run of the experiment `project`, on the server of MLFLOW_TRACKING_URI or in a database in the outputs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from xp.execution.tracking.base import TrackedRun, Tracker
from xp.lib.nested import leaves

ADDRESS = "MLFLOW_TRACKING_URI"
RUN_ID = "xp.run_id"
LAST_TIME = "xp.last_time"
PARAMETERS = 100
"""Largest number of parameters that MLflow takes at a time."""


class MlflowTracker(Tracker):
    """A tag of MLflow's run has xp's run id, by which a resumed run finds it; another the time of the last line."""

    packages: ClassVar = {
        "mlflow": "mlflow-skinny",
        "sqlalchemy": "sqlalchemy",
        "alembic": "alembic",
    }
    secrets = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self.export_secrets(run)
        self._client = MlflowClient(_store(run.directory))
        experiment = self._client.get_experiment_by_name(run.project)
        if experiment is None:
            number = self._client.create_experiment(run.project)
        else:
            number = experiment.experiment_id
        earlier = self._client.search_runs([number], f"tags.`{RUN_ID}` = '{run.run_id}'")
        if earlier:
            self._id = earlier[0].info.run_id
            self.last_time = float(earlier[0].data.tags.get(LAST_TIME, 0.0))
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {RUN_ID: run.run_id}
        self._id = self._client.create_run(number, tags=tags, run_name=run.run_id).info.run_id
        spec = [Param(_legal(key), str(value)) for key, value in leaves(run.config)]
        for first in range(0, len(spec), PARAMETERS):
            self._client.log_batch(self._id, params=spec[first : first + PARAMETERS])

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric, RunTag

        self.last_time = max(self.last_time, time)
        at = int(time * 1000)
        values = [Metric(_legal(name), value, at, step) for name, value in metrics.items()]
        self._client.log_batch(self._id, values, tags=[RunTag(LAST_TIME, repr(self.last_time))])

    def close(self, *, is_success: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if is_success else "FAILED")

    @classmethod
    def places(cls, run: Path) -> list[str]:
        if os.environ.get(ADDRESS):
            return []
        command = f"mlflow ui --backend-store-uri {shlex.quote(_store(run))}"
        return [f"MLflow        show it: {command}"]


def _store(run: Path) -> str:
    """Address of the server, or else of a database that all runs of the outputs share."""
    return os.environ.get(ADDRESS) or f"sqlite:///{run.absolute().parents[1] / 'mlflow.db'}"


def _legal(name: str) -> str:
    """A name with `_` instead of each character that MLflow does not take."""
    return re.sub(r"[^/\w.\- ]", "_", name)
