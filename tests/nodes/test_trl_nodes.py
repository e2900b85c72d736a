"""TRL on two nodes: by accelerate over `srun`, and over Ray's placement groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.conftest import QUICK, SMALL, RayNodes, ray_nodes, xp


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    yield from ray_nodes(tmp_path_factory.mktemp("ray"), [sys.executable], "--num-cpus=4")


def trained_on_two_nodes(outputs: Path) -> None:
    """Both ranks played, the metrics are of both steps, and the model is evaluated."""
    (attempt,) = outputs.glob("runs/*/attempt_1")
    assert json.loads((attempt.parent / "run.json").read_text())["status"] == "succeeded"
    played = {
        path.name: len(path.read_text().splitlines())
        for path in (attempt / "train/trajectories").glob("train*")
    }
    assert played == {"train.jsonl": 64, "train.rank_1.jsonl": 64}
    assert (attempt / "evaluate/after/eval.json").exists()


def test_the_embedded_default_on_two_nodes_of_slurm(tmp_path: Path) -> None:
    xp(tmp_path / "outputs", "launcher=slurm", *SMALL, *QUICK)
    trained_on_two_nodes(tmp_path / "outputs")


def test_the_embedded_default_on_two_nodes_of_ray(tmp_path: Path, cluster: RayNodes) -> None:
    words = ("launcher=ray", f"launcher.address={cluster.address}", *SMALL, *QUICK)
    xp(tmp_path / "outputs", *words, environ=cluster.environ)
    trained_on_two_nodes(tmp_path / "outputs")
