"""Epochs become rollout steps, the same number on every backend, and reach the trainer under its own name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.jobs import CONFIGS
from tests.support.sections import run_spec
from tests.support.task_set import stage_config, write_manifest
from xp.backends.skyrl.worker.train import check_warm_up as check_skyrls_warm_up
from xp.backends.slime.worker.train import check_warm_up
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.record import (
    RunRecord,
    RunStatus,
    write_record,
)
from xp.planning.plan import build_plan
from xp.planning.run_size import num_steps
from xp.planning.size_lines import training_line
from xp.spec import RunSpec, Training
from xp.tasks.training_length import settle, steps_of

WHODUNIT = {
    "trl": ("env=whodunit", "backend=trl", "model=qwen2.5-3b-instruct", "hardware=a100x4"),
    "skyrl": ("env=whodunit", "backend=skyrl", "model=qwen2.5-3b-instruct", "hardware=a100x4"),
    "slime": ("env=whodunit", "backend=slime", "model=qwen3-4b", "hardware=h100x8"),
}


def config_of(backend: str, *overrides: str) -> Any:
    spec = compose([*WHODUNIT[backend], *overrides])
    return CONFIGS[backend].from_json(stage_config(build_plan(spec, "r"), "train"))


def told(backend: str, config: Any) -> list[Any]:
    """All steps that the trainer is called with, repeated ones included."""
    if backend == "trl":
        return [config.grpo["max_steps"]]
    if backend == "skyrl":
        keys = [text.split("=") for text in config.native_keys]
        return [int(value) for key, value in keys if key == "trainer.max_training_steps"]
    flags = config.command.flags
    return [int(flags[at + 1]) for at, word in enumerate(flags) if word == "--num-rollout"]


@pytest.mark.parametrize("backend", list(WHODUNIT))
@pytest.mark.parametrize(("tasks", "prompts", "steps"), [(50, 16, 9), (63, 32, 3)])
def test_three_epochs_are_the_public_runs_steps_on_every_backend(
    backend: str, tasks: int, prompts: int, steps: int
) -> None:
    overrides = [f"env.train.num_tasks={tasks}", f"training.prompts_per_step={prompts}"]
    spec = compose([*WHODUNIT[backend], *overrides])
    config = config_of(backend, *overrides)
    settled = config.with_steps(steps_of(config.spec.training, tasks))
    assert num_steps(spec) == settled.num_steps == steps
    assert told(backend, settled) == [steps]
    assert f"the run: {steps} steps (3 epochs of {tasks} tasks) = " in training_line(spec)


def test_updates_of_trl_count_every_pass_of_an_epochs_steps() -> None:
    config = config_of(
        "trl",
        "training.updates_per_step=2",
        "training.passes_per_step=2",
        "training.micro_batch_size=2",
    )
    assert told("trl", config.with_steps(9)) == [36]


def epochs(number: int) -> Training:
    return run_spec(
        training__num_steps=None, training__epochs=number, training__prompts_per_step=16
    ).training


def test_fewer_tasks_than_a_step_takes_are_refused(tmp_path: Path) -> None:
    fix = r"a step takes 16 tasks and there are 10; set training\.prompts_per_step=10 at most, or"
    with pytest.raises(XpError, match=fix) as planned:
        build_plan(compose([*WHODUNIT["trl"], "env.train.num_tasks=10"]), "r")
    assert planned.value.code is ExitCode.PLAN
    with pytest.raises(XpError, match=fix) as run:
        settle(epochs(3), 10, tmp_path)
    assert run.value.code is ExitCode.TASKS


def test_an_unknown_number_of_tasks_is_open_until_prepared(
    tmp_path: Path,
) -> None:
    spec = compose([*WHODUNIT["skyrl"], "env.train.num_tasks=null", f"outputs={tmp_path}"])
    assert training_line(spec).startswith("the run: 3 epochs; number of steps known after prepare")
    write_manifest(spec, train=100, held_out=50)
    assert training_line(spec).startswith(
        "the run: 18 steps (3 epochs of 100 tasks) = 1,152 episodes"
    )


def test_a_warm_up_longer_than_slimes_epochs_is_refused() -> None:
    config = config_of("slime", "training.warmup_updates=10", "env.train.num_tasks=null")
    check_warm_up(config.with_steps(10))
    with pytest.raises(
        XpError, match="Megatron refuses a warm-up that is longer than the run of 9"
    ):
        check_warm_up(config.with_steps(9))


def test_a_warm_up_as_long_as_skyrls_megatron_is_refused() -> None:
    warm_up = SimpleNamespace(optimizer_config=SimpleNamespace(num_warmup_steps=10))
    megatron, fsdp = (
        SimpleNamespace(trainer=SimpleNamespace(strategy=name, policy=warm_up))
        for name in ("megatron", "fsdp")
    )
    check_skyrls_warm_up(megatron, 11)
    check_skyrls_warm_up(fsdp, 10)
    with pytest.raises(XpError, match="must be shorter than the run of 10 updates; set at most 9"):
        check_skyrls_warm_up(megatron, 10)


def test_fewer_epochs_than_a_resumed_runs_steps_are_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"stage": "train", "step": 18}\n')
    stage = tmp_path / "attempt_2" / "train"
    stage.mkdir(parents=True)
    assert settle(epochs(3), 100, stage) == 18
    with pytest.raises(
        XpError, match=r"training\.epochs=2: these are 12 steps, and 18 are made already"
    ):
        settle(epochs(2), 100, stage)


def length_of(spec: RunSpec) -> tuple[int | None, int | None]:
    return spec.training.num_steps, spec.training.epochs


def test_both_set_in_one_place_are_refused() -> None:
    with pytest.raises(
        XpError, match=r"^training: num_steps and epochs exclude each other: set one of them"
    ):
        compose(["training.epochs=2", "training.num_steps=3"])


def test_a_run_of_epochs_resumes_with_steps_and_vice_versa(tmp_path: Path) -> None:
    from xp.composition import to_yaml
    from xp.execution.resume import spec_to_resume

    run = tmp_path / "runs" / "r"
    run.mkdir(parents=True)
    write_record(run, RunRecord("r", RunStatus.SUCCEEDED, ()))
    (run / "spec.yaml").write_text(to_yaml(compose(["recipes=whodunit-skyrl"])))
    where = f"outputs={tmp_path}"
    assert length_of(spec_to_resume("r", [where]).spec) == (None, 3)
    assert length_of(spec_to_resume("r", [where, "training.num_steps=20"]).spec) == (20, None)
    assert length_of(spec_to_resume("r", [where, "training.epochs=4"]).spec) == (None, 4)
