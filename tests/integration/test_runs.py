"""`python -m xp runs` on runs that go on, ended, or were killed."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support.launching import Supervisor, eventually, launcher_spec, plan, stage
from xp.cli import runs
from xp.errors import ExitCode, XpError
from xp.execution import detached
from xp.execution.launchers.base import Context, Echo, Launch
from xp.execution.launchers.local import LocalLauncher
from xp.execution.record import RunStatus, read_record
from xp.execution.supervise import dispatch

pytestmark = pytest.mark.integration

WAITS = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\nprint('last')"


def begun(outputs: Path) -> bool:
    log = outputs / "runs/run/attempt_1/s0/log.txt"
    return log.exists() and "first" in log.read_text()


def test_the_log_of_a_running_run_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(tmp_path, [WAITS, "print('second stage')"])
    eventually(lambda: begun(tmp_path))
    runs.logs(tmp_path / "runs/run", follow=False)
    assert capsys.readouterr().out == "first\n"
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    runs.logs(tmp_path / "runs/run", follow=True)
    assert supervisor.end().returncode == 0
    assert capsys.readouterr().out == "first\nlast\nsecond stage\n"


def test_a_run_that_is_cancelled_is_interrupted(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, [WAITS])
    eventually(lambda: begun(tmp_path))
    assert str(supervisor.process.pid) in runs.cancel(tmp_path / "runs/run")
    assert supervisor.end().returncode == ExitCode.TERMINATED
    assert read_record(tmp_path / "runs/run").status is RunStatus.INTERRUPTED


def test_a_run_whose_supervisor_was_killed_says_so_and_its_log_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    supervisor = Supervisor(tmp_path, [WAITS], grace_s=0.5)
    eventually(lambda: begun(tmp_path))
    supervisor.send(signal.SIGKILL)
    supervisor.process.join()
    directory = tmp_path / "runs/run"
    assert runs.status(directory, read_record(directory)) == runs.KILLED
    runs.logs(directory, follow=True)
    runs.show(directory)
    assert (
        "its supervisor was killed; continue with: python -m xp resume=run"
        in capsys.readouterr().out
    )


class Silent:
    """A cluster that took the jobs and answers nothing any more."""

    name = "slurm"
    is_here = True

    def check(self, *_: object) -> None: ...

    def submit_all(self, stages: list[tuple[object, Context]]) -> list[Launch]:
        return [
            Launch(
                "slurm",
                its.key("a"),
                "7",
                its.log("a"),
                "2026-01-01T00:00:00+00:00",
            )
            for _, its in stages
        ]

    def submit(self, *_: object) -> Launch:
        raise NotImplementedError

    def wait(self, launch: Launch, echo: Echo) -> int:
        raise NotImplementedError

    def poll(self, _: Launch) -> int | None:
        return None

    def fetch(self, _: Launch) -> None: ...

    def cancel(self, launch: Launch, *, now: bool = False) -> None: ...

    def close(self, _: Context) -> None: ...


def test_a_run_whose_cluster_is_gone_can_be_closed_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = Silent()
    monkeypatch.setattr(detached, "detachable", lambda *_: silent)
    monkeypatch.setattr(runs, "DEADLINE_S", 0.5)
    one = plan(stage("a", "pass")).by(launcher_spec("slurm", detach=True))
    dispatch(one, silent, tmp_path, echo=lambda _: None)  # type: ignore[arg-type]
    assert "this was not confirmed" in runs.cancel(tmp_path / "runs/run")
    assert read_record(tmp_path / "runs/run").status is RunStatus.INTERRUPTED
    dispatch(one.at(2), silent, tmp_path, echo=lambda _: None)  # type: ignore[arg-type]
    assert read_record(tmp_path / "runs/run").status is RunStatus.RUNNING


@pytest.mark.parametrize("is_one_screen", [True, False])
def test_the_reason_of_a_failed_stage_is_once_on_each_output(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_one_screen: bool,
) -> None:
    if is_one_screen:
        monkeypatch.setattr(sys, "stderr", sys.stdout)
    one = plan(stage("a", "print('the reason'); raise SystemExit(7)"))
    with pytest.raises(XpError) as caught:
        dispatch(one, LocalLauncher(), tmp_path, replan=one.at)  # type: ignore[arg-type]
    print(caught.value, file=sys.stderr)
    captured = capfd.readouterr()
    outputs = [captured.out] if is_one_screen else [captured.out, captured.err]
    assert [output.count("the reason") for output in outputs] == [1] * len(outputs)
    assert "stage a failed: exit code 7" in outputs[-1]
