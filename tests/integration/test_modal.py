"""`launcher=modal`: the app that it writes, with the real client offline; its life, with a stand-in for the cloud."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.detaching import DetachingContract
from tests.launching import ROOT, launcher_spec, plan, stage
from xp.cli import runs
from xp.launchers import modal
from xp.launchers.base import Context, Launcher
from xp.launchers.modal import ModalLauncher
from xp.runs.record import RunStatus
from xp.testing.launcher import LauncherSuite

pytestmark = pytest.mark.integration

STAND_IN = ROOT / "tests/stubs/modal_cloud.py"


@pytest.fixture(autouse=True)
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`modal` on PATH is the stand-in; returns its state."""
    state, programs = tmp_path / "cloud", tmp_path / "bin"
    state.mkdir()
    programs.mkdir()
    script = programs / "modal"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{STAND_IN}" "{state}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(modal, "ASK_S", 0.2)
    return state


class InTheCloud:
    """What both contracts ask of a place that does not see this machine."""

    cloud: Path

    @pytest.fixture(autouse=True)
    def remember(self, cloud: Path) -> None:
        self.cloud = cloud

    def root(self, _: object) -> Path:
        return self.cloud / "volume"

    def provide(self, secrets: dict[str, str]) -> None:
        (self.cloud / "secrets.json").write_text(json.dumps(secrets))


class TestModalLauncher(InTheCloud, LauncherSuite):
    """`launcher=modal`."""

    start_s = 30.0
    inherits = False

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return ModalLauncher(launcher_spec("modal", secret_name="mine", grace_s=1.0), tmp_path / "outputs")

    @pytest.fixture
    def context(self, tmp_path: Path) -> Context:
        return self.make_context(tmp_path)


@pytest.mark.slow
class TestDetachedModal(InTheCloud, DetachingContract):
    """`launcher=modal launcher.detach=true`."""

    name = "modal"
    num_files = 0

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"secret_name": "mine"}

    @pytest.fixture
    def launcher(self, outputs: Path, options: dict[str, Any]) -> Launcher:
        return ModalLauncher(launcher_spec("modal", grace_s=1.0, detach=True, **options), outputs)

    def test_the_model_and_the_trajectories_are_fetched_and_checkpoints_where_asked_for(
        self, outputs: Path, launcher: Launcher, options: dict[str, Any]
    ) -> None:
        run = self.leave(plan(stage("train", WRITES, outputs=("x",))), launcher, outputs, options)
        assert self.end(run) is RunStatus.SUCCEEDED
        assert not (run / "model").exists()
        said = runs.fetch(run, with_checkpoints=False)
        assert "--checkpoints brings them" in said
        assert (run / "model/config.json").read_text() == "{}"
        assert (run / "attempt_1/train/trajectories/train.jsonl").exists()
        assert not (run / "checkpoints").exists()
        assert "runs/run/checkpoints" in runs.fetch(run, with_checkpoints=True)
        assert (run / "checkpoints/1/weights").read_text() == "w"
        assert not list(run.glob("**/.fetch-*"))


WRITES = """
import os
episodes = "attempt_1/train/trajectories/train.jsonl"
for path, text in {"model/config.json": "{}", "checkpoints/1/weights": "w", episodes: ""}.items():
    os.makedirs(os.path.dirname(f"runs/run/{path}"), exist_ok=True)
    open(f"runs/run/{path}", "w").write(text)
open("x", "w").close()
"""
