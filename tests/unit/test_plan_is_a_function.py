"""Plans without what only the run needs: a Docker daemon, a cluster, a home."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.launching import launcher_spec
from xp.cli.display import files_lines
from xp.composition import compose, options
from xp.errors import XpError
from xp.execution.launchers import slurm_array
from xp.execution.launchers.slurm_job import options as slurm_options
from xp.planning.job import Resources
from xp.planning.plan import build_plan
from xp.planning.size_lines import training_line
from xp.spec.launcher import LauncherSpec

OF_LAUNCHERS = {"skypilot": ["launcher.options.bucket=s3://mine"]}
"""Launcher -> words that it needs."""


@pytest.mark.parametrize("launcher", sorted({*options("launcher")} - {"local"}))
def test_a_plan_for_another_place_points_to_its_files(launcher: str) -> None:
    spec = compose([f"launcher={launcher}", *OF_LAUNCHERS.get(launcher, [])])
    hint = f"launcher={spec.launcher.name}: --files shows every file of the jobs"
    assert files_lines(spec) == [hint]
    assert build_plan(spec, "r").stages


@pytest.mark.parametrize(
    ("words", "updates", "is_reached"),
    [
        (["training.warmup_updates=48", "training.updates_per_step=4"], 48, True),
        (["training.warmup_updates=24", "training.passes_per_step=2"], 24, True),
        (["training.warmup_updates=25", "training.passes_per_step=2"], 24, False),
    ],
)
def test_a_warm_up_is_compared_with_all_updates_of_the_run(
    words: list[str], updates: int, is_reached: bool
) -> None:
    line = training_line(compose([*words, "training.micro_batch_size=8"]))
    assert f"{updates} updates" in line
    assert ("does not reach" not in line) == is_reached


def gpus(number: int) -> Resources:
    return Resources("cpu" if number == 0 else "h100", number, 1, 8, 64.0)


def with_sbatch(**further: str) -> LauncherSpec:
    return launcher_spec("slurm", sbatch={k.replace("_", "-"): v for k, v in further.items()})


@pytest.mark.parametrize(
    ("further", "on_gpus", "on_cpu"),
    [
        ({"mem_per_cpu": "4G"}, "--mem-per-cpu=4G", "--mem-per-cpu=4G"),
        ({"mem_per_gpu": "90G"}, "--mem-per-gpu=90G", "--mem=65536M"),
        ({"gpus_per_node": "h100"}, "--gpus-per-node=h100:8", "--mem=65536M"),
    ],
)
def test_a_cluster_may_take_other_options_of_memory_and_gpus(
    further: dict[str, str], on_gpus: str, on_cpu: str
) -> None:
    spec = with_sbatch(**further)
    gpu_words = slurm_options(spec, gpus(8))
    cpu_words = slurm_options(spec, gpus(0))
    assert on_gpus in gpu_words
    assert on_cpu in cpu_words
    assert not any("gpu" in word for word in cpu_words)
    for words in (gpu_words, cpu_words):
        assert sum(word.startswith("--mem") for word in words) == 1
    assert sum(word.startswith(("--gres", "--gpus")) for word in gpu_words) == 1


def test_another_number_of_gpus_than_the_spec_has_is_refused() -> None:
    with pytest.raises(XpError, match="set the type"):
        slurm_options(with_sbatch(gpus_per_node="h100:4"), gpus(8))
    with pytest.raises(XpError, match="set one"):
        slurm_options(with_sbatch(mem_per_cpu="4G", mem_per_gpu="9G"), gpus(8))


def test_a_sweep_above_the_clusters_limit_is_several_arrays(tmp_path: Path) -> None:
    submitted: list[str] = []

    def ask(argv: list[str], **_: object) -> str:
        if argv[:3] == ["scontrol", "show", "config"]:
            return "MaxArraySize            = 3\nMaxJobCount = 10000\n"
        submitted.append(" ".join(argv))
        return str(len(submitted))

    stage = build_plan(compose(["launcher=slurm"]), "r").stages[0]
    sweep = {f"r{number}": [stage] for number in range(7)}
    with patch.object(slurm_array, "ask", ask):
        spec = launcher_spec("slurm", array=True, detach=True, array_at_once=2)
        arrays = slurm_array.SlurmArrays(spec, tmp_path, sweep, {})
    sizes = ["--array=0-2%2", "--array=0-2%2", "--array=0-0%2"]
    assert [
        size in words
        for size, words in zip(
            sizes,
            submitted,
            strict=True,
        )
    ] == [True] * 3
    assert "--dependency=afterany:2" in submitted[2]
    assert arrays.task_id("r5", Path("code"), []) == "2_2"
