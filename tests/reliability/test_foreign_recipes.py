"""A recipe or a run of somebody else's is data: `plan` imports and starts nothing of it, and says what a run would."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.child import ended, xp
from tests.support.foreign import leave_run, record
from tests.support.launching import ROOT
from tests.support.tables import rows
from xp.backends.slime.control.flags import catalog
from xp.composition import compose
from xp.errors import ExitCode
from xp.planning.episode import named_code

SLIME = ("backend=slime", "model=qwen3-4b", "hardware=h100x8")
TRAP = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Env: ...\ndef one(*_): ...\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a package that leaves a mark when any module of it is imported."""
    for name in ("__init__", "envs"):
        (tmp_path / "theirs").mkdir(exist_ok=True)
        (tmp_path / "theirs" / f"{name}.py").write_text(TRAP)
    (tmp_path / "theirs" / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    return tmp_path


def test_plan_runs_no_code_of_a_spec_but_names_modules(place: Path) -> None:
    done = xp("plan", *SERVED, "env.reward_fn=theirs.envs:one", cwd=place)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "would import modules: theirs" in done.stdout
    assert not (place / "theirs" / "ran").exists()
    assert not (place / "outputs").exists()


SERVED = ("env=openreward", "env.serve=theirs.envs:Env")


@pytest.mark.parametrize(("settings", "expected"), rows("foreign_code", "settings"))
def test_plan_says_which_code_another_python_or_a_task_would_run(
    place: Path, settings: str, expected: list[str]
) -> None:
    text = "\n".join(named_code(compose(shlex.split(settings.replace("PLACE", str(place))))))
    assert [line for line in expected if line.replace("PLACE", str(place)) not in text] == []
    assert not (place / "theirs" / "ran").exists()


def loaded_by_slime() -> list[str]:
    """Slime's own flags with a path, which it loads as functions, and those of Megatron and SGLang that name code."""
    of_slime = [
        name
        for name, flag in catalog().flags.items()
        if flag.origin == "slime" and name.endswith("-path")
    ]
    return sorted({*of_slime, "--spec", "--sglang-custom-weight-loader"})


def test_each_flag_by_which_slime_loads_code_is_shown() -> None:
    keys = [f"backend.overrides.{flag.removeprefix('--')}" for flag in loaded_by_slime()]
    code = "\n".join(named_code(compose([*SLIME, *(f"{key}=theirs.envs.one" for key in keys)])))
    assert len(keys) > 10
    assert [key for key in keys if f"{key}=theirs.envs.one" not in code] == []


@pytest.mark.parametrize(("override", "expected"), rows("foreign_code", "overrides"))
@pytest.mark.parametrize("place", ["backend", "sft"])
def test_code_that_an_override_names_in_any_form_is_shown(
    place: str, override: str, expected: list[str]
) -> None:
    lines = named_code(compose([*SLIME, f"{place}.overrides.{override}"]))
    shown = [line for line in lines if "may import" in line]
    assert len(shown) == len(expected)
    for line, value in zip(shown, expected, strict=True):
        assert f"may import it: {place}.overrides.{value}" in line


def test_plan_of_a_run_directory_runs_no_code_of_it(place: Path) -> None:
    spec = compose([f"outputs={place / 'outputs'}", "env.reward_fn=theirs.envs:one"])
    run = leave_run(place / "outputs", "their-run", record("their-run", status="failed"), spec)
    (run / "attempt_1" / "code").mkdir()
    (run / "attempt_1" / "code" / "theirs.py").write_text(TRAP)
    before = sorted(place.rglob("*"))
    done = xp("plan", f"resume={run}", cwd=place)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "would import modules: theirs" in done.stdout
    assert sorted(place.rglob("*")) == before


def test_a_working_directory_offers_hydra_no_plugin(place: Path) -> None:
    """A fresh process: Hydra looks for plugins once."""
    for folder in (place, place / "theirs"):
        (folder / "hydra_plugins/hydra_optuna_sweeper").mkdir(parents=True)
        (folder / "hydra_plugins/hydra_optuna_sweeper/__init__.py").write_text(TRAP)
    (place / "theirs/hydra_plugins/__init__.py").write_text(TRAP)
    path = os.pathsep.join([str(place), str(place / "theirs"), str(ROOT)])
    words = [sys.executable, "-m", "xp", "plan"]
    done = ended(words, cwd=place, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == ExitCode.OK, done.stderr
    assert not list(place.rglob("ran"))
