"""A recipe or a run of somebody else's is data: `plan` imports and starts nothing of it, and says what a run would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.foreign import leave_run, record
from xp.compose import compose
from xp.errors import ExitCode

pytestmark = pytest.mark.scorecard(54)

TRAP = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Env: ...\ndef one(*_): ...\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a package that leaves a mark when any module of it is imported."""
    for name in ("__init__", "envs"):
        (tmp_path / "theirs").mkdir(exist_ok=True)
        (tmp_path / "theirs" / f"{name}.py").write_text(TRAP)
    (tmp_path / "theirs" / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    return tmp_path


def plan(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "xp", "plan", *arguments]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))}
    return subprocess.run(words, cwd=place, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "setting",
    [
        ("env=openreward", "env.serve=theirs.envs:Env"),
        ("env=graded", "env.grader=theirs.envs:one", "env.rows=theirs:rows.jsonl"),
        ("env.reward_fn=theirs.envs:one",),
        ("env=openreward", "env.provider=theirs.envs:Env", "env.target=x"),
    ],
    ids=lambda setting: setting[-1],
)
def test_plan_runs_no_code_of_a_spec_and_says_which_modules_a_run_would_import(
    place: Path, setting: tuple[str, ...]
) -> None:
    done = plan(place, *setting)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "would import modules: theirs" in done.stdout
    assert not (place / "theirs" / "ran").exists()
    assert not (place / "outputs").exists()


def test_plan_says_which_interpreter_a_run_would_start(place: Path) -> None:
    program = place / "python"
    program.write_text("#!/bin/sh\ntouch ran\n")
    program.chmod(0o755)
    done = plan(place, f"backend.runtime.python={program}")
    assert f"would start the Python of the jobs: {program}" in done.stdout
    assert not (place / "ran").exists()


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (("env=openenv_coding", "env.image=theirs:1", "env.serve=null"), "an environment"),
        (("backend=skyrl", "hardware=a100x4", "env=multiply", "backend.runtime.image=theirs:1"), "the jobs"),
    ],
    ids=["environment", "jobs"],
)
def test_plan_says_which_image_a_run_would_start(place: Path, settings: tuple[str, ...], what: str) -> None:
    done = plan(place, *settings)
    assert done.returncode == ExitCode.OK, done.stderr
    assert f"would start the image of {what}: theirs:1" in done.stdout


def test_plan_of_a_run_directory_runs_no_code_of_it(place: Path) -> None:
    spec = compose([f"outputs={place / 'outputs'}", "env.reward_fn=theirs.envs:one"])
    run = leave_run(place / "outputs", "their-run", record("their-run", status="failed"), spec)
    (run / "attempt_1" / "code").mkdir()
    (run / "attempt_1" / "code" / "theirs.py").write_text(TRAP)
    before = sorted(place.rglob("*"))
    done = plan(place, f"resume={run}")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "would import modules: theirs" in done.stdout
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("names", [("theirs/__init__.py",), ("__init__.py", "hydra_optuna_sweeper/__init__.py")])
def test_a_working_directory_offers_hydra_no_plugin(place: Path, names: tuple[str, ...]) -> None:
    for name in names:
        file = place / "hydra_plugins" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TRAP)
    done = plan(place)
    assert done.returncode == ExitCode.OK, done.stderr
    assert not list(place.rglob("ran"))
