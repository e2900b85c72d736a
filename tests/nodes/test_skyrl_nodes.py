"""SkyRL's rehearsal on two nodes: a Ray of the batch job's nodes under Slurm, and a Ray that is there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.conftest import SMALL, RayNodes, ray_nodes, xp
from tests.support.child import json_lines
from tests.support.job_clusters import of_job

PYTHON = os.environ.get("SKYRL_PYTHON", "")
SKYRL = (
    *(
        "backend=skyrl",
        f"backend.runtime.python={PYTHON}",
        "env=whodunit_mini",
        "model=tiny",
        "hardware=cpu",
        *SMALL,
    ),
    *("training.num_steps=2", "training.micro_batch_size=8", "env.held_out.num_tasks=16"),
)

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="SKYRL_PYTHON: the Python of .venv-skyrl (make test-nodes)"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    yield from ray_nodes(tmp_path_factory.mktemp("ray"), [PYTHON], "--num-cpus=8", "--num-gpus=1")


def trained(outputs: Path) -> None:
    (attempt,) = outputs.glob("runs/*/attempt_1")
    assert json.loads((attempt.parent / "run.json").read_text())["status"] == "succeeded"
    assert (attempt / "evaluate/after/eval.json").exists()
    steps = json_lines(attempt.parent / "metrics.jsonl")
    assert max(step.get("step", 0) for step in steps) == 2


def test_the_embedded_default_on_a_ray_of_the_batch_jobs_nodes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    xp(tmp_path / "outputs", "launcher=slurm", *SKYRL, environ={"HOME": str(home)})
    trained(tmp_path / "outputs")
    assert not list((home / ".xp/secrets").rglob("*.token"))
    assert not of_job(home)


def test_the_embedded_default_on_two_nodes_of_ray(tmp_path: Path, cluster: RayNodes) -> None:
    words = ("launcher=ray", f"launcher.address={cluster.address}", *SKYRL)
    xp(tmp_path / "outputs", *words, environ=cluster.environ)
    trained(tmp_path / "outputs")
