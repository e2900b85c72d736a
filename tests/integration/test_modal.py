"""`launcher=modal`: the app that it writes, with the real client offline; its life, with a stub for the cloud."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import ended
from tests.support.detaching import DetachingContract, InTheCloud, stub
from tests.support.http_server import Reply, http_server
from tests.support.launching import FakePlan, eventually, launcher_spec, plan, stage
from tests.support.modal_jobs import job, part
from xp.cli import runs
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import ExitCode, XpError
from xp.execution import detached
from xp.execution.launchers.base import Launch, Launcher
from xp.execution.launchers.modal import ModalLauncher
from xp.execution.launchers.modal_app import app_text
from xp.execution.record import RunStatus, read_record
from xp.execution.supervise import dispatch

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`modal` on PATH is the stub; returns its state."""
    return stub("modal", "modal_cloud.py", tmp_path, monkeypatch)


@pytest.mark.slow
class TestModalLauncher(InTheCloud, LauncherSuite):
    """`launcher=modal`."""

    inherits = False

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return ModalLauncher(
            launcher_spec("modal", secret_name="mine", grace_s=1.0), tmp_path / "outputs"
        )


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
        run = self.leave(
            plan(stage("train", WRITES, outputs=("x",))),
            launcher,
            outputs,
            options,
        )
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


METRICS = """
import json, os
assert "WANDB_API_KEY" not in os.environ, "the key is the tracker's, not the program's"
with open("runs/run/metrics.jsonl", "a") as file:
    for step in range(3):
        file.write(json.dumps({"step": step, "time": 1.0, "attempt": 1, "loss": step}) + "\\n")
"""
CANARY = "XPCANARY" + "a" * 32


def tracked_plan() -> FakePlan:
    """A stage that writes metrics, and one that writes none."""
    files = {"runs/run/attempt_1/train/config.json": '{"metrics": "runs/run/metrics.jsonl"}'}
    return plan(
        stage("prepare", "pass"),
        stage("train", METRICS, files=files),
        tracking=("wandb",),
    )


def leave(tmp_path: Path, **options: Any) -> Path:
    """Submit the plan and come back at its end; returns the run's directory on the volume."""
    spec = launcher_spec("modal", detach=True, grace_s=1.0, **options)
    launcher = ModalLauncher(spec, tmp_path / "outputs")
    dispatch(tracked_plan().by(spec), launcher, tmp_path / "outputs", echo=lambda _: None)  # type: ignore[arg-type]
    run = tmp_path / "outputs/runs/run"
    eventually(lambda: detached.current(run).status is not RunStatus.RUNNING)
    assert read_record(run).status is RunStatus.SUCCEEDED
    return tmp_path / "cloud/volume/runs/run"


def test_wandbs_key_comes_from_the_modal_secret_and_stands_in_no_file(
    tmp_path: Path, cloud: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client shows the key to a server of ours, which refuses it: the run goes on without the tracker."""
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    (cloud / "secrets.json").write_text(json.dumps({"WANDB_API_KEY": CANARY}))
    with pytest.raises(
        XpError, match=r"needs WANDB_API_KEY of a Modal Secret: .*launcher\.secret_name=NAME"
    ) as caught:
        leave(tmp_path)
    assert caught.value.code == ExitCode.SECRET
    with http_server(lambda _: Reply(status=401)) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        there = leave(tmp_path, secret_name="mine")
    given = {
        one.headers.get("authorization", "").removeprefix("Basic ") for one in server.requests
    } - {""}
    assert {base64.b64decode(one).decode() for one in given} == {f"api:{CANARY}"}
    assert "tracking: wandb failed" in (there / "attempt_1/train/log.txt").read_text()
    app = (tmp_path / "outputs/runs/run/attempt_1/modal_app.py").read_text()
    assert app.count("required_keys=['WANDB_API_KEY']") == 1
    places = (tmp_path / "outputs", there)
    assert not [
        one
        for place in places
        for one in place.rglob("*")
        if one.is_file() and CANARY in _text(one)
    ]


def _text(file: Path) -> str:
    return file.read_bytes().decode(errors="replace")


def test_a_volume_that_does_not_answer_is_not_one_without_a_result(
    cloud: Path, tmp_path: Path
) -> None:
    app = cloud / "apps/ap-1"
    stage_directory = cloud / "volume/runs/run/attempt_1/train"
    for one in (app, stage_directory):
        one.mkdir(parents=True)
    (app / "app.json").write_text(
        json.dumps({"app_id": "ap-1", "description": "x", "state": "stopped"})
    )
    result = stage_directory / "result.json"
    result.write_text(json.dumps({"code": 0, "missing": [], "ended": "2026-11-24T00:00:00+00:00"}))
    launcher = ModalLauncher(launcher_spec("modal", secret_name="mine"), tmp_path / "outputs")
    launch = Launch(
        "modal",
        "run/1/train",
        "ap-1",
        "runs/run/attempt_1/train/log.txt",
        "2026-11-24T00:00:00+00:00",
    )
    (cloud / "FAIL").write_text("silent")
    assert launcher.poll(launch) is None
    with pytest.raises(XpError, match=r"Modal did not give runs/run/metrics\.jsonl") as caught:
        launcher.fetch(launch)
    assert caught.value.code == ExitCode.RUNTIME
    (cloud / "FAIL").unlink()
    assert launcher.poll(launch) == ExitCode.OK
    launcher.fetch(launch)
    assert (
        tmp_path / "outputs/runs/run/attempt_1/train/result.json"
    ).read_bytes() == result.read_bytes()
    result.write_text("{")
    assert launcher.poll(launch) == ExitCode.RUNTIME
    result.unlink()
    assert launcher.poll(launch) == ExitCode.TERMINATED
    stage_directory.rmdir()
    assert launcher.poll(launch) == ExitCode.TERMINATED


def test_the_real_client_imports_it_and_lists_its_entrypoint(tmp_path: Path) -> None:
    (tmp_path / "attempt/code").mkdir(parents=True)
    for name in ("train", "evaluate"):
        (tmp_path / "attempt" / name).mkdir()
        (tmp_path / "attempt" / name / "job.json").write_text("{}")
    spec = launcher_spec("modal", secret_name="mine")
    file = tmp_path / "modal_app.py"
    parts = [
        part("train", job(secrets={"KEY": "K"}), str(tmp_path)),
        part("evaluate", job(), str(tmp_path)),
    ]
    file.write_text(app_text("t", "xp-run", parts, spec))
    program = Path(sys.executable).with_name("modal")
    shown = ended([program, "run", file, "--help"], cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: modal run" in shown.stdout
