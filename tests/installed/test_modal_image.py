"""launcher=modal, as far as it goes without Modal: each app's image built layer by layer, its functions run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed.imports import ROOT
from xp.cli.install import uv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FAKE = """#!/bin/sh
# The command's answers; what is submitted is read from the run's directory.
if [ "$1" = run ]; then echo "xp-submitted ap-1 fc-1"; else echo "[]"; fi
"""
SHORT = ("training.num_steps=2", "evaluation.num_tasks=2")
WHOLE = pytest.mark.skipif(
    "XP_TEST_INSTALL" not in os.environ, reason="several gigabytes: make test-install"
)


def submitted(tmp_path: Path, words: tuple[str, ...]) -> Path:
    """The app that a run of these words hands to Modal's command."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "modal").write_text(FAKE)
    (programs / "modal").chmod(0o755)
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "xp", *words, "launcher=modal", f"outputs={tmp_path / 'here'}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(tmp_path.glob("here/runs/*/attempt_1/modal_app.py"))


def played(app: Path, root: Path, exit_code: int = 0) -> str:
    """Output of Modal's builder and containers, simulated with a Python of this machine below the first layer.

    Args:
        app: what is submitted.
        root: stands for the containers' and the volume's root.
        exit_code: of the function that is called last.
    """
    root.mkdir()
    program = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    assert uv()
    helper = ROOT / "tests/installed/modal_container.py"
    command = [sys.executable, helper, app, root, sys.executable, program]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3000
    )
    print(done.stdout[-3000:])
    assert done.returncode == exit_code, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@WHOLE
@pytest.mark.parametrize("backend", ["trl", "skyrl"])
def test_a_whole_run_goes_in_containers_that_are_made_from_the_locks(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "env=multiply",
        "hardware=cpu",
        f"backend={backend}",
        "launcher.detach=true",
        "tracking=wandb",
        *SHORT,
    )
    monkeypatch.setenv("WANDB_MODE", "offline")
    said = played(submitted(tmp_path, words), tmp_path / "modal")
    assert "--require-hashes --no-deps --requirements" in said
    for stage in (
        "prepare in image_0",
        "model in image_1",
        "train in image_1",
        "evaluate in image_1",
    ):
        name = stage if backend == "trl" or "image_0" in stage else stage.partition(" ")[0]
        assert f"stage_{name}" in said
    assert list(tmp_path.glob("modal/outputs/runs/*/model/config.json"))
    assert list(tmp_path.glob("modal/outputs/runs/*/wandb/offline-run-*/*.wandb")), (
        "the container told W&B nothing"
    )
    assert not list(tmp_path.glob("here/runs/*/model")), (
        "the function's body ran elsewhere than in the container"
    )
