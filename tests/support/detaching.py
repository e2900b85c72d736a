"""What every launcher that can leave must do beside the contract: nothing but the record is needed to go on."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import (
    DEADLINE_S,
    ROOT,
    FakePlan,
    eventually,
    launcher_spec,
    plan,
    stage,
    statuses,
)
from xp.cli import runs
from xp.errors import ExitCode, XpError
from xp.execution import detached
from xp.execution.launchers import secrets_files, service
from xp.execution.launchers.base import Launcher
from xp.execution.record import RunStatus, read_record
from xp.execution.supervise import dispatch

WAITS = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('last')"


def stub(program: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stub for a cloud's command on PATH; returns the directory of its state."""
    state = tmp_path / "cloud"
    programs = tmp_path / "bin"
    state.mkdir()
    programs.mkdir()
    command = programs / program
    command.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests/stubs" / script}" "{state}" "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(service.ServiceLauncher, "ask_s", 0.2)
    monkeypatch.setattr(service, "QUIET_S", DEADLINE_S)
    return state


class InTheCloud:
    """Answers of a place that does not see this machine to both contracts."""

    cloud: Path

    @pytest.fixture(autouse=True)
    def remember(self, cloud: Path) -> None:
        self.cloud = cloud

    def root(self, _: object) -> Path:
        return self.cloud / "volume"

    def provide(self, secrets: dict[str, str]) -> None:
        (self.cloud / "secrets.json").write_text(json.dumps(secrets))


class DetachingContract:
    """The contract of `launcher.detach=true`."""

    name: str
    num_files = 1
    """Secrets files of a stage that needs secrets."""

    @pytest.fixture
    def outputs(self, tmp_path: Path) -> Path:
        return tmp_path / "outputs"

    @pytest.fixture
    def launcher(self, outputs: Path) -> Launcher:
        raise NotImplementedError

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        """Options of the launcher's section."""
        return {}

    def root(self, outputs: Path) -> Path:
        """Path of a job's outputs root, as this machine sees it."""
        return outputs

    def provide(self, secrets: dict[str, str]) -> None:
        """Do what a user does beforehand, where a launcher does not hand over the values itself."""

    def leave(
        self, one: FakePlan, launcher: Launcher, outputs: Path, options: dict[str, Any]
    ) -> Path:
        """Submit and come back; returns the run's directory."""
        spec = launcher_spec(self.name, detach=True, grace_s=1.0, **options)
        record = dispatch(one.by(spec), launcher, outputs, echo=lambda _: None)  # type: ignore[arg-type]
        assert record.status is RunStatus.RUNNING
        return outputs / "runs" / one.run_id

    def end(self, run: Path) -> RunStatus:
        eventually(lambda: detached.current(run).status is not RunStatus.RUNNING)
        return read_record(run).status

    def test_stages_follow_each_other_without_a_supervisor(
        self,
        outputs: Path,
        launcher: Launcher,
        options: dict[str, Any],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        first = stage("a", WAITS + "\nopen('x', 'w').write('from a')", outputs=("x",))
        second = stage("b", "open('y', 'w').write(open('x').read() + ' and b')", outputs=("y",))
        run = self.leave(plan(first, second), launcher, outputs, options)
        eventually(lambda: "first" in _text(self.root(outputs) / "runs/run/attempt_1/a/log.txt"))
        assert runs.status(run, detached.current(run)) == "running"
        assert statuses(outputs) == {"a": "running", "b": "pending"}
        threading.Timer(1.0, (self.root(outputs) / "go").touch).start()
        runs.logs(run, follow=True)
        shown = capsys.readouterr().out
        assert "first\nlast\n" in shown, shown
        assert self.end(run) is RunStatus.SUCCEEDED
        assert (self.root(outputs) / "y").read_text() == "from a and b"
        runs.show(run)
        assert "succeeded" in capsys.readouterr().out

    def test_a_failed_stage_ends_the_run_and_the_next_one_never_starts(
        self, outputs: Path, launcher: Launcher, options: dict[str, Any]
    ) -> None:
        stages = (stage("a", "raise SystemExit(7)"), stage("b", "open('ran', 'w')"))
        run = self.leave(plan(*stages), launcher, outputs, options)
        assert self.end(run) is RunStatus.FAILED
        assert read_record(run).attempts[-1].stages[0].exit_code == ExitCode.ENVIRONMENT
        time.sleep(1)
        assert not (self.root(outputs) / "ran").exists()

    def test_missing_outputs_are_a_failure_there_too(
        self, outputs: Path, launcher: Launcher, options: dict[str, Any]
    ) -> None:
        run = self.leave(
            plan(stage("a", "pass", outputs=("x",))),
            launcher,
            outputs,
            options,
        )
        assert self.end(run) is RunStatus.FAILED
        assert read_record(run).attempts[-1].stages[0].exit_code == ExitCode.MISSING_OUTPUT

    def test_cancel_ends_it_and_a_resume_is_refused_until_then(
        self, outputs: Path, launcher: Launcher, options: dict[str, Any]
    ) -> None:
        one = plan(stage("a", WAITS), stage("b", "open('ran', 'w')"))
        run = self.leave(one, launcher, outputs, options)
        eventually(lambda: "first" in _text(self.root(outputs) / "runs/run/attempt_1/a/log.txt"))
        spec = launcher_spec(self.name, detach=True, grace_s=1.0, **options)
        with pytest.raises(XpError, match="runs cancel run") as caught:
            dispatch(one.at(2).by(spec), launcher, outputs, echo=lambda _: None)  # type: ignore[arg-type]
        assert caught.value.code == ExitCode.RUN_DIR
        assert "interrupted" in runs.cancel(run)
        assert not (self.root(outputs) / "ran").exists()
        (self.root(outputs) / "go").touch()
        dispatch(one.at(2).by(spec), launcher, outputs, echo=lambda _: None)  # type: ignore[arg-type]
        assert self.end(run) is RunStatus.SUCCEEDED
        assert [attempt.status for attempt in read_record(run).attempts] == [
            RunStatus.INTERRUPTED,
            RunStatus.SUCCEEDED,
        ]

    def test_a_secret_lives_as_long_as_its_stage_may_run(
        self,
        outputs: Path,
        launcher: Launcher,
        options: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("MY_KEY", 'XPCANARY/"1" $(touch pwned)\nline')
        self.provide({"KEY": os.environ["MY_KEY"]})
        code = "import os\nassert len(os.environ['KEY']) == 32, len(os.environ['KEY'])\n" + WAITS
        run = self.leave(
            plan(stage("a", code, secrets={"KEY": "MY_KEY"})), launcher, outputs, options
        )
        eventually(lambda: "first" in _text(self.root(outputs) / "runs/run/attempt_1/a/log.txt"))
        files = list(secrets_files.directory().rglob("*.json"))
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * self.num_files
        (self.root(outputs) / "go").touch()
        assert self.end(run) is RunStatus.SUCCEEDED
        assert not list(secrets_files.directory().rglob("*"))
        written = b"".join(path.read_bytes() for path in outputs.rglob("*") if path.is_file())
        assert b"XPCANARY" not in written


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""
