"""Runs as points of a sweep leave them."""

from __future__ import annotations

from pathlib import Path

from tests.support.evaluations import leave_evaluation
from xp.composition import compose, to_yaml
from xp.execution.record import (
    Provenance,
    RunRecord,
    RunStatus,
    begin_attempt,
    close_attempt,
    write_record,
)
from xp.spec import RunSpec

HERE = Provenance("0.1.0", "3.11", None, None, {})


def spec(outputs: Path, *overrides: str) -> RunSpec:
    return compose([f"outputs={outputs}", *overrides])


def leave_run(one: RunSpec, run_id: str, status: RunStatus, after: float | None = None) -> Path:
    directory = Path(one.outputs) / "runs" / run_id
    directory.mkdir(parents=True)
    (directory / "spec.yaml").write_text(to_yaml(one))
    record = begin_attempt(RunRecord(run_id, RunStatus.PENDING, ()), ["train"], HERE)
    write_record(
        directory, record if status is RunStatus.RUNNING else close_attempt(record, status)
    )
    if after is not None:
        leave_evaluation(directory, before={"e/test/0": [0.4]}, after={"e/test/0": [after]})
    return directory
