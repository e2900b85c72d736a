"""Processes, engines and batches of a TRL job: what is launched, on which accelerators, with which arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.jobs import PLACES, job_named, train_config
from tests.support.trl_choices import GPUS, LORA, SEPARATE
from xp.backends.trl.control.render import grpo_config, render
from xp.backends.trl.worker.config import TRLTrainConfig
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.fields.support import value_refusals
from xp.planning.batch import arithmetic
from xp.planning.job import Job, Resources
from xp.planning.plan import build_plan
from xp.planning.sft import sft_fields
from xp.planning.stages import starts_private_ray
from xp.spec import Reference, RunSpec
from xp.worker.engines.config import EvaluateConfig
from xp.worker.places import policy_start, reference_place, start_place


def job(name: str, *overrides: str) -> Job:
    return job_named(name, render(compose(overrides), PLACES))


def test_vllm_on_a_cpu_does_not_sleep_and_asks_for_no_compiler() -> None:
    spec = compose(["backend.engine.name=vllm"])
    rendered = grpo_config(spec, PLACES)
    assert (rendered["use_vllm"], rendered["vllm_mode"]) == (True, "colocate")
    assert (rendered["vllm_enable_sleep_mode"], rendered["use_cpu"]) == (False, True)
    train, evaluate = (
        stage.job for stage in render(spec, PLACES) if stage.name in ("train", "evaluate")
    )
    assert train.env["TORCH_COMPILE_DISABLE"] == evaluate.env["TORCH_COMPILE_DISABLE"] == "1"
    assert "vllm" in train.runtime.packages
    for words in (["hardware=a100x4", "model=qwen2.5-1.5b-instruct"], []):
        assert not any(
            "TORCH_COMPILE_DISABLE" in stage.job.env for stage in render(compose(words), PLACES)
        )


@pytest.mark.parametrize(("card", "sleeps"), [("h200", False), ("rtx3070", True)])
def test_a_colocated_engine_sleeps_only_where_it_must(card: str, *, sleeps: bool) -> None:
    rendered = grpo_config(compose(["recipes=first-gpu", f"hardware={card}"]), PLACES)
    assert rendered["vllm_mode"] == "colocate"
    assert rendered["vllm_enable_sleep_mode"] == sleeps


def test_a_server_on_a_cpu_takes_weights_over_gloo() -> None:
    spec = compose(
        [
            "backend.engine.name=vllm",
            "backend.engine.placement=separate",
            "backend.engine.accelerators=1",
        ]
    )
    server = train_config(TRLTrainConfig, spec).server
    assert server is not None
    assert server.num_accelerators == 0
    words = " ".join(server.arguments)
    assert "--data-parallel-size 1 " in words
    assert (
        '--weight-transfer-config {"backend": "gloo"} --worker-extension-cls xp.worker.gloo_transfer.Ext'
        in words
    )
    assert arithmetic(spec)[0].endswith("over 1 data-parallel rank, 1 micro-batch of 64 each")


def test_a_fine_tuning_is_launched_as_the_training_is() -> None:
    here = "runs/r/attempt_1/sft"
    tuned = "sft.data=solve:my_env:solve"
    program = ("python", "-m", "xp.backends.trl.worker.sft", f"{here}/config.json")
    alone = job("sft", tuned)
    several = job("sft", *GPUS, tuned)
    assert alone.argv == program
    assert f"{here}/accelerate.yaml" not in alone.files
    assert several.argv == (*program, f"{here}/accelerate.yaml")
    assert yaml.safe_load(several.files[f"{here}/accelerate.yaml"])["num_processes"] == 4


def test_a_ray_of_its_own_is_started_on_one_machine_unless_the_user_has_a_cluster() -> None:
    def starts(*words: str) -> bool:
        return starts_private_ray(compose([*GPUS, *words]))

    assert [
        starts(),
        starts("launcher=slurm"),
        starts("launcher=ray", "launcher.start_head=true"),
    ] == [True] * 3
    assert [starts("launcher=ray"), starts("launcher=slurm", "hardware.num_nodes=2")] == [False] * 2


def test_a_training_starts_from_its_checkpoint_or_its_fine_tuning() -> None:
    def with_training(spec: RunSpec, **changes: object) -> RunSpec:
        return spec.model_copy(update={"training": spec.training.model_copy(update=changes)})

    plain, tuned = (
        compose(["model=hf", "model.path=Org/Name", GPUS[0], *more])
        for more in ((), ("sft.data=solve",))
    )
    specs = [plain, tuned, with_training(plain, initial_checkpoint="/x/checkpoint")]
    assert [policy_start(one, PLACES) for one in specs] == ["Org/Name", PLACES.sft, "/x/checkpoint"]
    assert [start_place(one) for one in specs] == ["Org/Name", "Org/Name", "/x/checkpoint"]
    # The penalty is relative to the model itself, unless the spec says otherwise.
    specs = [plain, tuned, with_training(tuned, reference=Reference.SFT)]
    assert [reference_place(one, PLACES) for one in specs] == ["Org/Name", "Org/Name", PLACES.sft]


def test_where_the_episodes_of_a_fine_tuning_are_from(tmp_path: Path) -> None:
    def fields(data: str, *more: str) -> dict[str, Any]:
        return sft_fields(
            compose(["env=multiply", f"outputs={tmp_path}", f"sft.data={data}", *more]), PLACES
        )

    solve = fields("solve")
    named = fields("solve:my_env:play")
    talks = fields("hf:org/talks")
    assert [one["is_messages"] for one in (solve, named, talks)] == [False, False, True]
    assert [one["files"] for one in (solve, named, talks)] == [(), (), ("hf:org/talks",)]
    assert [one["solvers"] for one in (solve, named, talks)] == [
        {"multiply": "xp.envs.builtin.multiply:Multiply.solve"},
        {"multiply": "my_env:play"},
        {},
    ]
    with pytest.raises(XpError, match=r"expected one directory .*/runs/r-\*; there is none"):
        fields("run:r-")
    for run in ("r-1", "r-2"):
        for file in ("b", "a"):
            place = tmp_path / f"runs/{run}/attempt_1/train/trajectories/{file}.jsonl"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
    recorded = fields("run:r-2")
    files = tuple(f"runs/r-2/attempt_1/train/trajectories/{name}.jsonl" for name in "ab")
    assert (recorded["files"], recorded["is_messages"], recorded["solvers"]) == (files, False, {})
    with pytest.raises(XpError, match=r"there are several \(r-1, r-2\)") as caught:
        fields("run:r-")
    assert caught.value.code is ExitCode.RUN_DIR
    (tmp_path / "evaluations/e").mkdir(parents=True)
    with pytest.raises(XpError, match="e has no trajectories"):
        fields("eval:e")


@pytest.mark.parametrize(
    ("words", "num_refusals"),
    [
        (("env=openreward", "env.target=Org/Name"), 0),
        (("env=openreward", "env.target=Org/Name", "sft.data=solve"), 1),
        (("env=openreward", "env.target=Org/Name", "sft.data=solve:my_env:solve"), 0),
        (("env=multiply", "sft.data=solve"), 0),
        (("env=graded", "env.grader=my_env:grade", "env.rows=my_env:rows", "sft.data=solve"), 0),
        (("env=graded", "env.grader=number", "env.rows=my_env:rows", "sft.data=solve"), 1),
    ],
)
def test_solve_needs_a_class_that_is_here(words: tuple[str, ...], num_refusals: int) -> None:
    refusals = [*value_refusals(compose(words))]
    assert [one.field for one in refusals] == ["sft.data"] * num_refusals
    assert all("has no class here" in one.reason for one in refusals)


def test_a_stage_without_accelerators_takes_a_part_of_the_machine() -> None:
    def resources(*words: str) -> Resources:
        return build_plan(compose(words), "r").stages[0].job.resources

    assert resources(*GPUS) == Resources("cpu", 0, 1, num_cpus=4, memory_gb=8.0)
    small = Resources("cpu", 0, 1, num_cpus=2, memory_gb=4.0)
    assert resources("hardware.num_cpus=2", "hardware.memory_gb=4") == small


def test_one_process_on_a_cpu_is_trls_own_program() -> None:
    train = job("train")
    assert train.argv == (
        "python",
        "-m",
        "xp.backends.trl.worker.train",
        "runs/r/attempt_1/train/config.json",
    )
    assert not [path for path in train.files if path.endswith("accelerate.yaml")]
    assert train.resources.num_accelerators == 0


@pytest.mark.parametrize(
    ("strategy", "kind", "number"),
    [("ddp", "MULTI_GPU", 2), ("fsdp2", "FSDP", 4)],
    ids=["whole copies", "sharded"],
)
def test_several_processes_are_launched_by_accelerate_with_a_file_of_their_own(
    strategy: str, kind: str, number: int
) -> None:
    train = job("train", *GPUS, f"hardware=a100x{number}", f"backend.parallel.strategy={strategy}")
    here = "runs/r/attempt_1/train"
    program = ("python", "-m", "xp.backends.trl.worker.launch")
    assert train.argv == (*program, f"{here}/config.json", f"{here}/accelerate.yaml")
    config = yaml.safe_load(train.files[f"{here}/accelerate.yaml"])
    assert config["distributed_type"] == kind
    assert config["num_processes"] == number
    assert config["mixed_precision"] == "bf16"
    assert ("fsdp_config" in config) == (strategy == "fsdp2")


def test_offloading_reaches_accelerates_file() -> None:
    train = job("train", *GPUS, "backend.parallel.offload_parameters=true")
    config = yaml.safe_load(train.files["runs/r/attempt_1/train/accelerate.yaml"])
    assert config["fsdp_config"]["fsdp_offload_params"] is True
    assert config["fsdp_config"]["fsdp_version"] == 2


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


def test_a_rank_waits_as_long_as_anothers_episodes_may_take() -> None:
    overrides = (*GPUS, "env.limits.episode_timeout_s=100.0", "env.limits.max_sessions=8")
    # Sixteen episodes a process, eight at a time.
    assert grpo_config(compose(overrides), PLACES)["ddp_timeout"] == 1800 + 2 * 100


def test_what_the_job_needs_is_checked_before_the_start() -> None:
    assert job("train").runtime.packages == ("torch", "transformers", "trl", "openreward")
    assert job("train", "hardware=a100x1", "model=qwen3-4b", LORA).runtime.packages[-2:] == (
        "vllm",
        "peft",
    )
