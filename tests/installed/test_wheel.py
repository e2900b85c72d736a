"""The wheel, as somebody gets it who has no checkout: installed with its dependencies into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.installed.imports import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def run(command: Sequence[str | Path], where: Path) -> str:
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ |= {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PIP_", "UV_", "HTTP", "SSL_"))
    }
    done = subprocess.run(
        [*command], cwd=where, env=environ, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds the wheel, its dependencies, and nothing else."""
    target = tmp_path_factory.mktemp("wheel")
    build = [
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        target,
        ROOT,
    ]
    run([sys.executable, *build], target)
    run([sys.executable, "-m", "venv", target / "venv"], target)
    python = target / "venv/bin/python"
    run([python, "-m", "pip", "install", "--quiet", next(target.glob("*.whl"))], target)
    return python


def test_the_distribution_is_ours_and_holds_the_command(installed: Path, tmp_path: Path) -> None:
    ask = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions() if d.name.startswith('xp')))"
    assert run([installed, "-c", ask], tmp_path).strip() == "xp-rl"
    assert "whodunit_mini" in run([installed.with_name("xp"), "plan"], tmp_path)


def test_it_plans_a_run_of_every_backend_without_a_trainer(installed: Path, tmp_path: Path) -> None:
    for words in (
        ["backend=trl", "hardware=a100x4"],
        ["backend=skyrl", "hardware=a100x4"],
        ["recipes=whodunit-slime"],
    ):
        shown = run([installed, "-m", "xp", "plan", "env=whodunit", *words], tmp_path)
        assert "train" in shown
    assert list(tmp_path.iterdir()) == []


def test_it_prepares_tasks_of_an_environment_without_a_server(
    installed: Path, tmp_path: Path
) -> None:
    run([installed, "-m", "xp", "prepare", "env=multiply"], tmp_path)
    assert list(tmp_path.glob("outputs/tasks/*/manifest.json"))
