"""The app that launcher=modal writes: what it asks Modal for, and what it refuses to ask for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launching import launcher_spec
from xp.errors import ExitCode, XpError
from xp.job import Job, Resources, Runtime
from xp.launchers.modal_app import Part, app_text, check_job, gpu_string

H100S = Resources("h100", 8, 1, 96, 1000.0)
AWKWARD = 'it\'s "here"\n$(touch pwned); {braces} \\ '


def job(resources: Resources = H100S, **runtime: Any) -> Job:
    secrets = runtime.pop("secrets", {})
    return Job(("python", "-m", "x"), {}, (), resources, Runtime(**runtime), secrets=secrets)


def part(name: str, one: Job, place: str = "/o") -> Part:
    return Part(name, one, Path(place, "order.json"), Path(place, "code"))


def arguments(text: str) -> dict[str, dict[str, Any]]:
    """Of each function's decorator, where they are plain values."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            call = node.decorator_list[0]
            assert isinstance(call, ast.Call)
            found[node.name] = {
                str(item.arg): item.value.value for item in call.keywords if isinstance(item.value, ast.Constant)
            }
    return found


def test_a_stage_asks_for_its_hardware_its_image_and_the_specs_time() -> None:
    spec = launcher_spec("modal", timeout_s=7200, secret_name="mine")
    one = job(image="someone/trainer:1", secrets={"KEY": "MY_KEY"})
    text = app_text("train of run", "xp-run", [part("train", one)], spec, {})
    assert arguments(text)["stage_train"] == {
        "gpu": "H100!:8",
        "cpu": 96.0,
        "memory": 1024000,
        "timeout": 7200,
    }
    assert "modal.Image.from_registry('someone/trainer:1')" in text
    assert "modal.Secret.from_name('mine', required_keys=['KEY'])" in text
    assert "MY_KEY" not in text


def test_preparation_is_a_function_without_a_gpu_and_packages_are_pinned() -> None:
    small = job(Resources("cpu", 0, 1, 4, 8.0), packages=("pyarrow", "trl"))
    text = app_text("t", "xp", [part("prepare", small)], launcher_spec("modal"), {"trl": "1.16.0", "other": "1"})
    assert arguments(text)["stage_prepare"]["gpu"] is None
    assert "pip_install('pyarrow', 'trl==1.16.0')" in text


def test_a_run_that_is_left_to_modal_is_one_app_whose_functions_follow_each_other() -> None:
    parts = [part("prepare", job(Resources("cpu", 0, 1, 4, 8.0))), part("train", job())]
    text = app_text("t", "xp", parts, launcher_spec("modal"), {})
    assert "for stage in (stage_prepare, stage_train,):" in text
    assert text.count(".spawn()") == 1


@pytest.mark.scorecard(30)
def test_whatever_is_in_a_name_stays_text() -> None:
    parts = [part("train", job(image=AWKWARD), AWKWARD)]
    text = app_text("t", AWKWARD, parts, launcher_spec("modal"), {})
    literals = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {AWKWARD, f"{AWKWARD}/code", f"{AWKWARD}/order.json"} <= literals
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert names <= {"app", "argv", "bool", "call", "carry_out", "code", "int", "job", "modal", "os", "outputs"} | {
        *("print", "stage", "stage_train", "str", "subprocess")
    }


def test_the_real_client_imports_it_and_lists_its_entrypoint(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "order.json").write_text("{}")
    spec = launcher_spec("modal", secret_name="mine")
    file = tmp_path / "modal_app.py"
    parts = [part("train", job(secrets={"KEY": "K"}), str(tmp_path)), part("evaluate", job(), str(tmp_path))]
    file.write_text(app_text("t", "xp-run", parts, spec, {}))
    program = Path(sys.executable).with_name("modal")
    shown = subprocess.run([program, "run", file, "--help"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: modal run" in shown.stdout


@pytest.mark.parametrize(
    ("accelerator", "count", "expected"),
    [("a100-80gb", 4, "A100-80GB:4"), ("h200", 8, "H200:8"), ("l4", 1, "L4:1"), ("cpu", 4, None), ("h100", 0, None)],
)
def test_accelerators_in_modals_words(accelerator: str, count: int, expected: str | None) -> None:
    assert gpu_string(Resources(accelerator, count, 1, 1, 1.0)) == expected


@pytest.mark.parametrize(
    ("one", "code", "said"),
    [
        (job(Resources("tpu", 1, 1, 1, 1.0)), ExitCode.PLAN, "a100-80gb"),
        (job(Resources("h100", 16, 1, 1, 1.0)), ExitCode.PLAN, "at most 8"),
        (job(Resources("a10g", 8, 1, 1, 1.0)), ExitCode.PLAN, "at most 4"),
        (job(Resources("h100", 8, 2, 1, 1.0)), ExitCode.PLAN, "one node"),
        (job(python="/venv/bin/python"), ExitCode.PLAN, "backend.runtime.image"),
        (job(project="SKYRL_PATH"), ExitCode.PLAN, "backend.runtime.image"),
        (job(secrets={"KEY": "MY_KEY"}), ExitCode.SECRET, "modal secret create"),
    ],
)
def test_what_modal_lacks_is_refused_with_the_way_out(one: Job, code: ExitCode, said: str) -> None:
    with pytest.raises(XpError, match=said) as caught:
        check_job("train", one, launcher_spec("modal"))
    assert caught.value.code == code
