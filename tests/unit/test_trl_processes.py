"""Processes, engines and batches of a TRL job: what is launched, on which accelerators, with which arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.jobs import PLACES, job_named, train_config
from tests.support.trl_choices import GPUS, SEPARATE
from xp.backends.trl.control.render import grpo_config, render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.errors import XpError
from xp.planning.job import Job
from xp.planning.sft import sft_fields
from xp.planning.stages import starts_private_ray
from xp.worker.engines.config import EvaluateConfig


def job(name: str, *overrides: str) -> Job:
    return job_named(name, render(compose(overrides), PLACES))


def test_vllm_on_a_cpu_does_not_sleep_and_asks_for_no_compiler() -> None:
    spec = compose(["backend.engine.name=vllm"])
    rendered = grpo_config(spec, PLACES)
    assert (rendered["vllm_mode"], rendered["use_cpu"]) == ("colocate", True)
    assert rendered["vllm_enable_sleep_mode"] is False
    stages = render(spec, PLACES)
    for name in ("train", "evaluate"):
        assert job_named(name, stages).env["TORCH_COMPILE_DISABLE"] == "1"
    assert "TORCH_COMPILE_DISABLE" not in job("train").env


@pytest.mark.parametrize(
    ("stage", "words", "program"),
    [
        ("sft", [], "sft"),
        ("sft", [*GPUS], "sft"),
        ("train", [], "train"),
        ("train", [*GPUS], "launch"),
    ],
)
def test_several_processes_are_launched_by_accelerate(
    stage: str, words: list[str], program: str
) -> None:
    made = job(stage, *words, "sft.data=solve:my_env:solve", "training.reference=sft")
    here = f"runs/r/attempt_1/{stage}"
    own = ("python", "-m", f"xp.backends.trl.worker.{program}", f"{here}/config.json")
    file = f"{here}/accelerate.yaml"
    assert made.argv == (*own, *([file] if words else []))
    assert (file in made.files) is bool(words)


def test_a_ray_of_its_own_is_started_on_one_machine_unless_the_user_has_a_cluster() -> None:
    def starts(*words: str) -> bool:
        return starts_private_ray(compose([*GPUS, *words]))

    assert [
        starts(),
        starts("launcher=slurm"),
        starts("launcher=ray", "launcher.start_head=true"),
    ] == [True] * 3
    assert [starts("launcher=ray"), starts("launcher=slurm", "hardware.num_nodes=2")] == [False] * 2


@pytest.mark.parametrize(
    ("data", "is_messages", "files", "solvers"),
    [
        ("solve", False, (), {"multiply": "xp.envs.builtin.multiply:Multiply.solve"}),
        ("solve:my_env:play", False, (), {"multiply": "my_env:play"}),
        ("hf:org/talks", True, ("hf:org/talks",), {}),
        ("run:r-2", False, ("runs/r-2/attempt_1/train/trajectories/a.jsonl",), {}),
    ],
)
def test_where_the_episodes_of_a_fine_tuning_are_from(
    data: str, is_messages: bool, files: tuple[str, ...], solvers: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "runs/r-2/attempt_1/train/trajectories/a.jsonl"
    place.parent.mkdir(parents=True)
    place.touch()
    spec = compose(["env=multiply", f"outputs={tmp_path}", f"sft.data={data}"])
    fields = sft_fields(spec, PLACES)
    assert (fields["is_messages"], fields["files"], fields["solvers"]) == (
        is_messages,
        files,
        solvers,
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("run:x-", r"expected one directory .*/runs/x-\*; there is none"),
        ("run:r-", r"there are several \(r-1, r-2\)"),
        ("eval:e", "e has no trajectories"),
    ],
)
def test_a_source_that_is_not_one_directory_with_episodes_is_refused(
    data: str, words: str, tmp_path: Path
) -> None:
    for name in ("runs/r-1", "runs/r-2", "evaluations/e"):
        (tmp_path / name).mkdir(parents=True)
    spec = compose(["env=multiply", f"outputs={tmp_path}", f"sft.data={data}"])
    with pytest.raises(XpError, match=words):
        sft_fields(spec, PLACES)


@pytest.mark.parametrize(
    ("strategy", "kind", "number"),
    [("ddp", "MULTI_GPU", 2), ("fsdp2", "FSDP", 4)],
    ids=["whole copies", "sharded"],
)
def test_accelerates_file_has_the_strategy(strategy: str, kind: str, number: int) -> None:
    train = job("train", *GPUS, f"hardware=a100x{number}", f"backend.parallel.strategy={strategy}")
    config = yaml.safe_load(train.files["runs/r/attempt_1/train/accelerate.yaml"])
    assert (config["distributed_type"], config["num_processes"]) == (kind, number)
    assert config["mixed_precision"] == "bf16"
    assert ("fsdp_config" in config) == (strategy == "fsdp2")


def test_engines_of_their_own_leave_the_rest_of_the_accelerators_to_training() -> None:
    config = train_config(TRLTrainConfig, compose([*SEPARATE, "backend.engine.tensor_parallel=2"]))
    assert config.num_processes == 2
    assert config.grpo["vllm_mode"] == "server"
    server = config.server
    assert server is not None
    assert server.num_accelerators == 2
    words = " ".join(server.arguments)
    for part in (
        "--tensor-parallel-size 2 --data-parallel-size 1",
        "--gpu-memory-utilization 0.5",
        f"--max-model-len {2048 + 8192}",
        '--weight-transfer-config {"backend": "nccl"}',
        "--logprobs-mode processed_logprobs",
    ):
        assert part in words


def test_evaluation_plays_on_all_accelerators_and_takes_no_weights() -> None:
    text = job("evaluate", *SEPARATE).files["runs/r/attempt_1/evaluate/config.json"]
    server = EvaluateConfig.from_json(text).server
    assert server is not None
    assert server.num_accelerators == 4
    assert "--data-parallel-size 4" in " ".join(server.arguments)
    assert "--weight-transfer-config" not in server.arguments
