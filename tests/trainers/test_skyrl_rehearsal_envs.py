"""Environments of every kind through SkyRL's whole loop: OpenEnv, a grader of the user's own, a mix of two providers.

Small and short: two steps with a model that knows the answers, then the evaluation of the trained one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.envs_under_test.taught import teach
from tests.support.evaluations import evaluated
from tests.support.skyrl_environments import GROUP, HELD_OUT, SMALL, STEPS, XPS_PYTHON, run_stage
from xp.composition import compose
from xp.episode.metrics_file import read_metrics
from xp.episode.trajectory import read_trajectories
from xp.errors import ExitCode
from xp.planning.stages import task_set_place
from xp.tasks.row import TaskRow, read_rows
from xp.worker.places import model_place

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not XPS_PYTHON.exists(), reason=f"{XPS_PYTHON} is what xp is started with: make setup"
    ),
]


@dataclass(frozen=True)
class Run:
    """A training and its evaluation, both ended with exit code 0."""

    outputs: Path
    tasks: list[TaskRow]

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.outputs / "runs/r/metrics.jsonl", "train")

    def trajectories(self) -> list[dict[str, Any]]:
        return read_trajectories(self.outputs / "runs/r/attempt_1/train/trajectories/train.jsonl")

    def evaluation(self) -> dict[str, Any]:
        return evaluated(self.outputs / "runs/r/attempt_1/evaluate")


def run(outputs: Path, *overrides: str, path: str = "") -> Run:
    """Prepare, teach, train, evaluate."""
    spec = compose([*SMALL, *overrides])
    rows: list[TaskRow] = []
    for name in ("prepare", "train", "evaluate"):
        done = run_stage(outputs, name, overrides, path)
        assert done.returncode == ExitCode.OK, f"{name}: {done.stdout[-4000:]}{done.stderr[-4000:]}"
        if name == "prepare":
            rows = list(read_rows(outputs / task_set_place(spec) / "tasks.parquet"))
            teach(rows, outputs / model_place(spec.model))
    return Run(outputs, rows)


def check_whole(found: Run, envs: set[str]) -> None:
    """No episode is void, each is recorded once, and the evaluation has scored every one."""
    assert [line["step"] for line in found.metrics()] == [1, 2]
    assert all(
        line["episodes/void"] == 0.0 and line["episodes/num"] == 2.0 * GROUP
        for line in found.metrics()
    )
    records = found.trajectories()
    assert sorted(record["sample"] for record in records) == sorted([0, 1] * 2 * STEPS)
    assert {record["env"] for record in records} <= envs
    assert all(record["outcome"]["void_reason"] is None for record in records)
    results = found.evaluation()
    assert {
        name: (one["num_played"], one["summary"]["num_void"]) for name, one in results.items()
    } == {
        "before": (HELD_OUT, 0),
        "after": (HELD_OUT, 0),
    }


def test_each_environment_of_a_mix_is_trained_by_its_rule(tmp_path: Path) -> None:
    members = ("whodunit_mini", "multiply")
    overrides = [
        f"env.members.{member}.{purpose}.num_tasks={count}"
        for member in members
        for purpose, count in (("train", 3), ("held_out", 2))
    ]
    # Equal shares, so that both members are seen in two steps.
    overrides += ["env=whodunit_mini_multiply", "env.members.whodunit_mini.weight=1.0"]
    found = run(tmp_path, *overrides)
    check_whole(found, set(members))
    assert {record["env"] for record in found.trajectories()} == set(members)
    for member in members:
        lines = [line for line in found.metrics() if f"{member}/reward/avg_raw_reward" in line]
        assert lines
        assert all(line[f"{member}/episodes/void"] == 0.0 for line in lines)
        played = [record for record in found.trajectories() if record["env"] == member]
        assert sum(line[f"{member}/episodes/num"] for line in lines) == len(played)
    rewards = {
        member: {one["outcome"]["reward"] for one in found.trajectories() if one["env"] == member}
        for member in members
    }
    assert 0.5 in rewards["multiply"]
    assert max(rewards["multiply"]) == 0.5
    assert max(rewards["whodunit_mini"]) > 0.0
