"""`plan --files` shows what a launcher would hand to another program: the script, the job, the app."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from xp.cli.display import submitted
from xp.composition import compose
from xp.planning.episode import named_code
from xp.planning.plan import build_plan


def texts(tmp_path: Path, *words: str) -> dict[str, str]:
    return dict(
        submitted(build_plan(compose(["env=multiply", "hardware=cpu", *words]), "r"), tmp_path)
    )


def test_slurms_scripts_name_the_command_that_would_submit_them(tmp_path: Path) -> None:
    found = texts(tmp_path, "launcher=slurm", "launcher.partition=gpus", "launcher.detach=true")
    assert set(found) == {
        f"runs/r/attempt_1/{stage}/job.sh" for stage in ("prepare", "model", "train", "evaluate")
    }
    script = found["runs/r/attempt_1/train/job.sh"]
    assert "--partition=gpus" in script
    assert "--dependency=afterok:JOB_OF_model" in script
    assert f"{tmp_path}/runs/r/attempt_1/train/job.json" in script


def test_slurm_prepares_in_its_own_partition_after_the_lines_of_setup(tmp_path: Path) -> None:
    partitions = ("launcher.partition=gpus", "launcher.prepare_partition=net")
    setup = 'launcher.setup=[module load cuda/12.8,"export A=1"]'
    machine = ("hardware=a100x1", "model=qwen2.5-1.5b-instruct")
    found = texts(tmp_path, "launcher=slurm", *partitions, setup, *machine)
    for stage, partition in (("prepare", "net"), ("train", "gpus")):
        script = found[f"runs/r/attempt_1/{stage}/job.sh"]
        assert f"--partition={partition}" in script
        _, _, after = script.partition("module load cuda/12.8\nexport A=1\n")
        assert "xp.execution.launchers.node.on_node" in after
    spec = compose(["launcher=slurm", "launcher.setup=[module load cuda/12.8]"])
    assert "would run in each job of Slurm: module load cuda/12.8" in named_code(spec)


def test_slurms_script_of_several_nodes_says_how_srun_starts_the_program(tmp_path: Path) -> None:
    nodes = ("hardware.num_nodes=2", "hardware.num_cpus=2", "training.micro_batch_size=32")
    found = texts(tmp_path, "launcher=slurm", *nodes)
    (line,) = (
        line for line in found["runs/r/attempt_1/train/job.sh"].splitlines() if "srun" in line
    )
    assert line.startswith("# ")
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2" in line
    assert "srun" not in found["runs/r/attempt_1/prepare/job.sh"]
    assert list(tmp_path.iterdir()) == []


def test_slurms_array_is_the_script_of_a_task(tmp_path: Path) -> None:
    words = (
        "launcher=slurm",
        "launcher.detach=true",
        "launcher.array=true",
        "launcher.array_at_once=4",
    )
    ((name, script),) = texts(tmp_path, *words).items()
    assert name == "arrays/r/array.sh"
    assert "--array=0-0%4" in script
    assert "--hold" in script


@pytest.mark.parametrize("detach", [False, True])
def test_modals_apps_are_programs(detach: bool, tmp_path: Path) -> None:
    found = texts(tmp_path, "launcher=modal", f"launcher.detach={detach}")
    assert len(found) == (1 if detach else 4)
    assert all("@app.function" in text and ast.parse(text) for text in found.values())


def test_a_launcher_of_this_machine_submits_nothing(tmp_path: Path) -> None:
    assert texts(tmp_path, "launcher=local") == {}


@pytest.mark.parametrize(("words", "gpus"), [([], [0, 4]), (["launcher.detach=true"], [0])])
def test_ray_reserves_gpus_for_a_program_that_does_not_request_them_itself(
    words: list[str], gpus: list[int], tmp_path: Path
) -> None:
    machine = ("hardware=a100x4", "model=qwen2.5-1.5b-instruct", "backend=skyrl", "launcher=ray")
    jobs = [
        json.loads(text)
        for text in texts(
            tmp_path,
            *machine,
            *words,
        ).values()
    ]
    # In one Ray job of all stages, the training would wait for GPUs that the job itself has.
    assert sorted({job["entrypoint_num_gpus"] for job in jobs}) == gpus
    assert all(f"{tmp_path}/" in job["runtime_env"]["working_dir"] for job in jobs)
