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
    words = (
        "launcher=slurm",
        "launcher.partition=gpus",
        "launcher.prepare_partition=net",
        "hardware=a100x1",
    )
    found = texts(
        tmp_path,
        *words,
        'launcher.setup=[module load cuda/12.8,"export A=1"]',
        "model=qwen2.5-1.5b-instruct",
    )
    scripts = {stage: found[f"runs/r/attempt_1/{stage}/job.sh"] for stage in ("prepare", "train")}
    assert "--partition=net" in scripts["prepare"]
    assert "--partition=gpus" in scripts["train"]
    for script in scripts.values():
        before, _, after = script.partition("module load cuda/12.8\nexport A=1\n")
        assert "python" not in before.splitlines()[-1]
        assert "xp.execution.launchers.node.on_node" in after
    spec = compose(["launcher=slurm", "launcher.setup=[module load cuda/12.8]"])
    assert "would run in each job of Slurm: module load cuda/12.8" in named_code(spec)


def test_slurms_script_of_several_nodes_says_how_srun_starts_the_program(tmp_path: Path) -> None:
    words = (
        "launcher=slurm",
        "hardware.num_nodes=2",
        "hardware.num_cpus=2",
        "training.micro_batch_size=32",
    )
    found = texts(tmp_path, *words)
    script = found["runs/r/attempt_1/train/job.sh"]
    (said,) = (line for line in script.splitlines() if "srun" in line)
    assert said.startswith("# ")
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=2" in said
    assert (
        f"xp.execution.launchers.node.member {tmp_path}/runs/r/attempt_1/train/job.json MAIN_NODE:PORT"
        in said
    )
    assert "srun" not in found["runs/r/attempt_1/prepare/job.sh"]
    assert list(tmp_path.iterdir()) == []


def test_a_script_says_in_which_container_srun_starts_the_program(tmp_path: Path) -> None:
    words = ("launcher=slurm", "launcher.container=pyxis", "backend.runtime.image=example/trl:1")
    script = texts(tmp_path, *words)["runs/r/attempt_1/train/job.sh"]
    assert "srun --nodes=1" in script
    assert "--container-image=example/trl:1" in script


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


def test_rays_jobs_are_what_its_client_is_told(tmp_path: Path) -> None:
    found = texts(tmp_path, "launcher=ray")
    job = json.loads(found["runs/r/attempt_1/train/ray_job.json"])
    assert "xp.execution.launchers.node.on_node" in job["entrypoint"]
    assert job["runtime_env"]["working_dir"] == f"{tmp_path}/runs/r/attempt_1/code"


@pytest.mark.parametrize("detach", [False, True])
def test_modals_apps_are_programs(detach: bool, tmp_path: Path) -> None:
    found = texts(tmp_path, "launcher=modal", f"launcher.detach={detach}")
    assert len(found) == (1 if detach else 4)
    assert all("@app.function" in text and ast.parse(text) for text in found.values())


def test_a_launcher_of_this_machine_submits_nothing_and_showing_writes_nothing(
    tmp_path: Path,
) -> None:
    assert texts(tmp_path, "launcher=local") == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "gpus"), [((), {"train": 0, "evaluate": 4}), (("launcher.detach=true",), None)]
)
def test_ray_reserves_gpus_for_a_program_that_does_not_request_them_itself(
    words: tuple[str, ...], gpus: dict[str, int] | None, tmp_path: Path
) -> None:
    skyrl = (
        "env=multiply",
        "hardware=a100x4",
        "model=qwen2.5-1.5b-instruct",
        "backend=skyrl",
        "launcher=ray",
        *words,
    )
    files = dict(submitted(build_plan(compose(skyrl), "r"), tmp_path))
    found = {
        Path(name).parent.name: json.loads(text)["entrypoint_num_gpus"]
        for name, text in files.items()
    }
    # In one Ray job of all stages, the training would wait for GPUs that the job itself has.
    assert {*found.values()} == {0} if gpus is None else gpus.items() <= found.items()
