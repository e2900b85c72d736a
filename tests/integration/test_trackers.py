"""The four trackers get the same steps and values, by their real packages; a resumed run continues its own curve."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.support.child import ended
from tests.support.launching import eventually
from tests.support.wandb_history import rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = ((1, {1: 0.5, 2: 0.25, 3: 0.75}), (2, {3: 0.125, 4: 0.0625}))
"""Number of each attempt, and its steps with their loss; the second begins again at the checkpoint of step 2."""
SAME = {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.0625}
PLAY = """
import json, os, sys, time
from pathlib import Path
from xp.execution.tracking.base import TrackedRun, check_trackers, openers, tracked_places
from xp.execution.tracking.mirror import Mirror

name, attempt, losses = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
directory = Path("outputs/runs/a-run")
directory.mkdir(parents=True, exist_ok=True)
config = {"seed": 1, "training": {"steps": attempt, "a b/c": [1, 2]}, "nothing": {}}
run = TrackedRun("a-run", attempt, "a-project", config, directory, check_trackers([name]))
warn = sys.stderr.write
with Mirror(directory / "metrics.jsonl", run, openers([name]), warn, poll_s=0.05) as mirror:
    with (directory / "metrics.jsonl").open("a") as file:
        for step, loss in losses.items():
            line = {"step": int(step), "time": 1000.0 * attempt + int(step), "attempt": attempt, "stage": "train"}
            file.write(json.dumps({**line, "loss": loss, "eval/a@b/pass_at_k/4": 1, "far": float("inf")}) + "\\n")
    mirror.is_success = attempt == 2
print(*tracked_places([name], directory), sep="\\n")
"""
TRACKIO_ROWS = """
import json
from trackio.sqlite_storage import SQLiteStorage
(run,) = SQLiteStorage.get_runs("a-project")
rows = SQLiteStorage.get_logs("a-project", run)
print(json.dumps([run, [[row["step"], row["loss"], row["eval/a@b/pass_at_k/4"]] for row in rows]]))
"""


def program(
    place: Path, text: str, *words: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a process of its own, as a package's settings are read when it is imported."""
    known = {
        name: value for name, value in os.environ.items() if name[:6] not in ("MLFLOW", "TRACKI")
    }
    # Another test of this process may have started a service of W&B, which would write for this program too.
    known = {name: value for name, value in known.items() if not name.startswith("WANDB_")}
    variables = {**known, "WANDB_MODE": "offline", "TRACKIO_DIR": str(place / "trackio"), **environ}
    command = [sys.executable, "-c", text, *words]
    return ended(
        command, cwd=place, env={**variables, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    )


def of_wandb(place: Path) -> Iterable[tuple[int, float]]:
    files = sorted(place.glob("outputs/runs/a-run/wandb/offline-run-*-a-run/run-a-run.wandb"))
    assert len(files) == 2
    # W&B's own process may still be writing when finish() has returned.
    eventually(lambda: sum(len(rows(file)) for file in files) == 5)
    return [(row["step"], row["loss"]) for file in files for row in rows(file)]


def of_mlflow(place: Path) -> Iterable[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/outputs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("a-project").experiment_id])
    assert run.info.run_name == "a-run"
    assert run.info.status == "FINISHED"
    assert run.data.params["training.steps"] == "1"
    assert run.data.params["training.a b/c"] == "[1, 2]"
    assert run.data.metrics["eval/a_b/pass_at_k/4"] == 1.0
    history = client.get_metric_history(run.info.run_id, "loss")
    points = sorted(history, key=lambda point: point.timestamp)
    assert [point.timestamp for point in points] == [
        1_001_000,
        1_002_000,
        1_003_000,
        2_003_000,
        2_004_000,
    ]
    return [(point.step, point.value) for point in points]


def of_trackio(place: Path) -> Iterable[tuple[int, float]]:
    read = program(place, TRACKIO_ROWS)
    name, logged = json.loads(read.stdout.splitlines()[-1])
    assert name == "a-run"
    assert {passes for _, _, passes in logged} == {1.0}
    return [(step, loss) for step, loss, _ in logged]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_each_tracker_gets_the_same_steps_and_values_over_a_resume(
    name: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    for attempt, losses in ATTEMPTS:
        played = program(tmp_path, PLAY, name, str(attempt), json.dumps(losses))
        assert played.returncode == 0, played.stderr
        assert "tracking:" not in played.stderr
        assert name in played.stdout.partition("(")[0].lower().replace("w&b", "wandb")
        assert len(played.stdout.splitlines()) == 1, "only the line of the end"
    readers: dict[str, Callable[[Path], Iterable[tuple[int, float]]]] = {
        "wandb": of_wandb,
        "mlflow": of_mlflow,
        "trackio": of_trackio,
    }
    points = list(readers[name](tmp_path))
    assert dict(points) == SAME
    assert points == [(1, 0.5), (2, 0.25), (3, 0.75), (3, 0.125), (4, 0.0625)]
