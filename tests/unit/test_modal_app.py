"""The app that launcher=modal writes: what it asks Modal for, and what it refuses to ask for."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import launcher_spec
from tests.support.modal_jobs import job, part
from xp.composition import compose
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context
from xp.execution.launchers.modal import ModalLauncher, limit
from xp.execution.launchers.modal_app import app_text, gpu_string, image_text
from xp.execution.launchers.service import lock_of
from xp.planning.job import Job, Resources, Stage
from xp.planning.plan import build_plan
from xp.planning.refusals import launcher_lines
from xp.planning.runtimes import locks

AWKWARD = 'it\'s "here"\n$(touch pwned); {braces} \\ '


def arguments(text: str) -> dict[str, dict[str, Any]]:
    """Arguments of each function's decorator that are plain values."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            assert isinstance(call, ast.Call)
            found[node.name] = {
                str(item.arg): item.value.value
                for item in call.keywords
                if isinstance(item.value, ast.Constant)
            }
    return found


def test_a_stage_asks_for_its_hardware_its_image_and_the_specs_time() -> None:
    spec = launcher_spec("modal", timeout_s=7200, secret_name="mine")
    one = job(image="someone/trainer:1", secrets={"KEY": "MY_KEY"})
    text = app_text("train of run", "xp-run", [part("train", one)], spec)
    assert arguments(text)["stage_train"] == {
        "gpu": "H100!:8",
        "cpu": 96.0,
        "memory": 1024000,
        "timeout": 7200,
        "retries": 0,
    }
    assert "modal.Image.from_registry('someone/trainer:1')" in text
    assert "modal.Secret.from_name('mine', required_keys=['KEY'])" in text
    assert "MY_KEY" not in text


def test_preparation_is_a_function_without_a_gpu_whose_image_is_its_lock() -> None:
    small = job(Resources("cpu", 0, 1, 4, 8.0), packages=("pyarrow", "filelock", "aiohttp"))
    text = app_text("t", "xp", [part("prepare", small)], launcher_spec("modal"))
    assert arguments(text)["stage_prepare"]["gpu"] is None
    found = lock_of(small)
    assert found is not None
    assert found.key == locks()["prepare"].key
    assert "debian_slim(python_version='3.12')" in text
    lock = "/o/attempt/prepare/environment/requirements.lock"
    assert f"requirements=['{lock}'], extra_options='--require-hashes --no-deps'" in text


@pytest.mark.parametrize("backend", ["trl", "skyrl"])
def test_a_trainers_image_is_its_lock_above_cudas_and_below_the_code(backend: str) -> None:
    plan = build_plan(
        compose(["env=whodunit", f"backend={backend}", "hardware=a100x4", "launcher=modal"]), "r"
    )
    train = next(stage.job for stage in plan.stages if stage.name == "train")
    text = image_text(train, plan.spec.launcher, Path("/o"))
    assert text.startswith("modal.Image.from_registry('nvidia/cuda:")
    assert "add_python='3.12'" in text
    assert ("/o/flash-attention.txt" in text) is (backend == "skyrl")
    whole = app_text("t", "a", [part("train", train)], plan.spec.launcher)
    assert whole.index("uv_pip_install") < whole.index("add_local_dir")


def test_slimes_image_has_its_checkouts_and_nothing_is_set_on_the_laptop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLIME_PATH", raising=False)
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    plan = build_plan(compose(["recipes=whodunit-slime", "launcher=modal"]), "r")
    train = next(stage.job for stage in plan.stages if stage.name == "train")
    assert limit(plan.spec.launcher, Stage("train", train)) is None
    text = image_text(train, plan.spec.launcher, Path("/o"))
    assert ".env({'SLIME_PATH': '/root/slime', 'MEGATRON_PATH': '/root/Megatron-LM'})" in text
    assert f"openreward=={locks()['prepare'].versions()['openreward']}" in text


def test_a_call_without_an_answer_is_repeated_after_a_time_limit() -> None:
    train = part("train", job(image="someone/trainer:1"))
    assert "retries=0," in app_text("t", "xp", [train], launcher_spec("modal", max_restarts=3))
    assert "retries=3," in app_text(
        "t", "xp", [train], launcher_spec("modal", max_restarts=3, detach=True)
    )


def test_whatever_is_in_a_name_stays_text() -> None:
    parts = [part("train", job(image=AWKWARD), AWKWARD)]
    text = app_text("t", AWKWARD, parts, launcher_spec("modal"))
    literals = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {AWKWARD, f"{AWKWARD}/attempt/code", f"{AWKWARD}/attempt/train/job.json"} <= literals
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert not {"pwned", "touch", "braces", "here"} & names


@pytest.mark.parametrize(
    ("accelerator", "count", "expected"),
    [
        ("a100-80gb", 4, "A100-80GB:4"),
        ("l4", 1, "L4:1"),
        ("cpu", 0, None),
    ],
)
def test_accelerators_in_modals_words(accelerator: str, count: int, expected: str | None) -> None:
    assert gpu_string(Resources(accelerator, count, 1, 1, 1.0)) == expected


@pytest.mark.parametrize(
    ("one", "code", "said"),
    [
        (job(Resources("tpu", 1, 1, 1, 1.0)), ExitCode.PLAN, "a100-80gb"),
        (job(Resources("h100", 8, 2, 1, 1.0)), ExitCode.PLAN, "one node"),
        (job(python="/venv/bin/python"), ExitCode.PLAN, "backend.runtime.image"),
        (job(project="SKYRL_PATH"), ExitCode.PLAN, "backend.runtime.image"),
        (job(secrets={"KEY": "MY_KEY"}), ExitCode.SECRET, "modal secret create"),
    ],
)
def test_what_modal_lacks_is_refused_with_the_way_out(
    one: Job, code: ExitCode, said: str, tmp_path: Path
) -> None:
    with pytest.raises(XpError, match=said) as caught:
        ModalLauncher(launcher_spec("modal"), tmp_path).check(
            [Stage("train", one)], Context("r", 1, tmp_path, "runs/r")
        )
    assert caught.value.code == code


def test_more_gpus_than_modal_documents_are_a_warning() -> None:
    stages = [Stage("train", job(Resources("h100", 16, 1, 1, 1.0)))]
    (line,) = launcher_lines(launcher_spec("modal"), stages)
    assert "16 x H100! in" in line
    assert launcher_lines(launcher_spec("modal"), [Stage("train", job())]) == []
