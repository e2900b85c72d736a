"""What dispatch decides, with a launcher that runs nothing: what is refused, in which order, what goes on record."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_launcher import FakeLauncher, ends, failing, go
from tests.support.fake_launcher import small_code as small_code
from tests.support.launching import FakePlan, FakeSpec, Limits, plan, stage
from xp.errors import ExitCode, XpError
from xp.execution.detached import current, live, stop
from xp.execution.launchers.base import Context, Launch
from xp.execution.launchers.cluster import write_launches
from xp.execution.launchers.node.exits import exit_code, is_restartable
from xp.execution.record import RunStatus, read_record
from xp.planning.job import Stage

pytestmark = pytest.mark.usefixtures("small_code")


class FakeCluster(FakeLauncher):
    """Accepts a chain of jobs; refuses it from the stage of a name on."""

    def __init__(self, refused: str = "") -> None:
        super().__init__()
        self._refused = refused

    def submit_all(self, stages: Sequence[tuple[Stage, Context]]) -> list[Launch]:
        launches = []
        for number, (one, context) in enumerate(stages):
            if one.name == self._refused:
                raise XpError("the queue is full", ExitCode.RUNTIME)
            launches.append(replace(self.submit(one, context), native_id=str(number + 7)))
            log = context.outputs / context.log(one.name)
            log.parent.mkdir(parents=True, exist_ok=True)
            write_launches(log.parent, launches[-1:])
        return launches

    def poll(self, launch: Launch) -> int | None:
        raise NotImplementedError

    def fetch(self, launch: Launch) -> None:
        raise NotImplementedError


def test_stages_run_in_order_and_are_on_record(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    record = go(
        plan(stage("a", ""), stage("b", ""), stage("c", "")),
        tmp_path,
        launcher,
    )
    assert launcher.submitted == ["run/1/a", "run/1/b", "run/1/c"]
    assert record.status is RunStatus.SUCCEEDED
    assert ends(record) == dict.fromkeys("abc", ("succeeded", 0))
    assert read_record(tmp_path / "runs/run").attempts == record.attempts


def test_the_record_on_disk_is_true_while_a_stage_runs(tmp_path: Path) -> None:
    seen = []

    def play(_: Stage, context: Context) -> int:
        seen.append(ends(read_record(context.outputs / "runs/run")))
        return 0

    go(
        plan(stage("a", ""), stage("b", "")),
        tmp_path,
        FakeLauncher(play),
    )
    assert seen[0] == {"a": ("running", None), "b": ("pending", None)}
    assert seen[1] == {"a": ("succeeded", 0), "b": ("running", None)}


def test_a_failed_stage_ends_the_run_with_reason_log_and_resume(tmp_path: Path) -> None:
    def play(one: Stage, context: Context) -> int:
        log = context.outputs / context.log(one.name)
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {number}\n" for number in range(100)))
        return ExitCode.ENVIRONMENT

    launcher = FakeLauncher(play)
    error = failing(
        plan(stage("a", ""), stage("b", "")),
        tmp_path,
        launcher,
    )
    assert error.code == ExitCode.ENVIRONMENT
    assert launcher.submitted == ["run/1/a"]
    log = tmp_path / "runs/run/attempt_1/a/log.txt"
    for part in ("exit code 7 (environment)", "line 99", str(log), "python -m xp resume=run"):
        assert part in str(error)
    record = read_record(tmp_path / "runs/run")
    assert record.status is RunStatus.FAILED
    assert ends(record) == {"a": ("failed", 7), "b": ("pending", None)}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, ExitCode.STAGE_FAILED),
        (3, ExitCode.PLAN),
        (11, ExitCode.RUNTIME),
        (42, ExitCode.STAGE_FAILED),
        (74, ExitCode.RESOURCE),
        (128 + 9, ExitCode.STAGE_FAILED),
        (255, ExitCode.STAGE_FAILED),
    ],
)
def test_codes_of_the_table_pass_and_others_fail_the_stage(code: int, expected: ExitCode) -> None:
    assert exit_code(code, missing=[]) == expected


def detached(*stages: Stage) -> FakePlan:
    return replace(plan(*stages), spec=FakeSpec(launcher=Limits(detach=True)))


def test_a_detached_run_is_left_with_its_jobs_on_record(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text("{}")
    launcher = FakeCluster()
    screen = list[str]()
    chain = detached(
        stage("a", "", done="manifest"),
        stage("b", ""),
        stage("c", ""),
    )
    record = go(chain, tmp_path, launcher, echo=screen.append)
    assert record.status == RunStatus.RUNNING
    assert launcher.closed == []
    assert launcher.cancelled == []
    assert [one.native_id for one in record.attempts[0].stages] == [None, "7", "8"]
    assert ends(record) == {"a": ("cached", None), "b": ("pending", None), "c": ("pending", None)}
    assert screen[1:] == [
        f"xp: {name}: submitted as local job {number}\n" for name, number in (("b", 7), ("c", 8))
    ]


def test_jobs_of_a_chain_that_is_refused_in_part_are_cancelled(tmp_path: Path) -> None:
    launcher = FakeCluster(refused="c")
    error = failing(
        detached(stage("a", ""), stage("b", ""), stage("c", "")),
        tmp_path,
        launcher,
    )
    assert "the queue is full" in str(error)
    assert launcher.cancelled == [("run/1/b", False), ("run/1/a", False)]
    assert launcher.closed == ["run/1/"]
    record = read_record(tmp_path / "runs/run")
    assert record.status is RunStatus.FAILED
    assert [one.native_id for one in record.attempts[0].stages] == ["7", "8", None]


def test_exit_0_without_the_promised_outputs_is_a_failure(tmp_path: Path) -> None:
    assert exit_code(0, missing=["x"]) is ExitCode.MISSING_OUTPUT
    error = failing(
        plan(stage("a", "", outputs=("there", "x/absent"), done="x/manifest")), tmp_path
    )
    assert error.code == ExitCode.MISSING_OUTPUT
    assert "without writing there, x/absent, x/manifest" in str(error)
    assert ends(read_record(tmp_path / "runs/run")) == {"a": ("failed", 0)}


def test_a_manifest_without_its_data_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "manifest").touch()

    def play(_: Stage, context: Context) -> int:
        (context.outputs / "data").touch()
        return 0

    launcher = FakeLauncher(play)
    go(
        plan(stage("a", "", done="manifest", outputs=("data",))),
        tmp_path,
        launcher,
    )
    assert launcher.submitted == ["run/1/a"]


@pytest.mark.parametrize("left", [(".lock", "spec.yaml"), ("spec.yaml", ".run.json.77.tmp")])
def test_a_directory_whose_supervisor_was_killed_before_its_first_record_is_used(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    run = tmp_path / "runs/run"
    run.mkdir(parents=True)
    for name in left:
        (run / name).write_text("half")
    assert go(plan(stage("a", "")), tmp_path).status is RunStatus.SUCCEEDED
    assert "launcher" in (run / "spec.yaml").read_text()


def test_a_directory_that_holds_anything_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "runs/run/notes").mkdir(parents=True)
    assert failing(plan(stage("a", "")), tmp_path).code == ExitCode.RUN_DIR


def test_outputs_of_an_earlier_attempt_are_not_those_of_this_one(tmp_path: Path) -> None:
    def write(_: Stage, context: Context) -> int:
        (context.outputs / "runs/run/model").write_text("trained")
        return 9

    train = stage("train", "", outputs=("runs/run/model",))
    failing(plan(train), tmp_path, FakeLauncher(write))
    error = failing(plan(train).at(2), tmp_path)  # exits 0 and writes nothing
    assert error.code == ExitCode.MISSING_OUTPUT
    record = go(
        plan(train).at(3), tmp_path, FakeLauncher(lambda one, context: write(one, context) - 9)
    )
    assert record.status is RunStatus.SUCCEEDED


def test_an_infrastructure_failure_makes_a_new_attempt(tmp_path: Path) -> None:
    launcher = FakeLauncher([0, ExitCode.ENVIRONMENT, 0])
    record = go(
        plan(stage("a", ""), stage("b", ""), max_restarts=1),
        tmp_path,
        launcher,
    )
    assert launcher.submitted == ["run/1/a", "run/1/b", "run/2/b"]
    assert [attempt.status for attempt in record.attempts] == [
        RunStatus.FAILED,
        RunStatus.SUCCEEDED,
    ]


def test_a_fault_of_the_user_is_never_tried_again(tmp_path: Path) -> None:
    launcher = FakeLauncher([ExitCode.STAGE_FAILED])
    failing(plan(stage("a", ""), max_restarts=5), tmp_path, launcher)
    assert launcher.submitted == ["run/1/a"]


def test_which_codes_are_the_infrastructures() -> None:
    restarted = [code for code in range(256) if is_restartable(code)]
    assert restarted == [7, 8, 13, 128 + 1, 128 + 6, 128 + 7, 128 + 9, 128 + 15]


def test_restarts_wait_twice_as_long_each_time_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    screen: list[str] = []
    monkeypatch.setattr("xp.lib.signals.Signals.sleep", lambda _, seconds: pauses.append(seconds))
    launcher = FakeLauncher([7] * 10)
    with pytest.raises(XpError) as caught:
        go(
            plan(stage("a", ""), max_restarts=3),
            tmp_path,
            launcher,
            restart_delay_s=5.0,
            echo=screen.append,
        )
    assert caught.value.code == ExitCode.ENVIRONMENT
    assert launcher.submitted == ["run/1/a", "run/2/a", "run/3/a", "run/4/a"]
    assert pauses == [5.0, 10.0, 20.0]
    assert "attempt_3 starts in 10 s" in "".join(screen)


@pytest.mark.parametrize(
    ("number", "times", "code"),
    [
        (signal.SIGINT, 1, ExitCode.INTERRUPTED),
        (signal.SIGINT, 2, ExitCode.INTERRUPTED),
        (signal.SIGTERM, 2, ExitCode.TERMINATED),
    ],
)
def test_a_signal_cancels_the_job_and_a_second_ctrl_c_kills_it(
    number: int, times: int, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xp.lib.signals.DEBOUNCE_S", 0.0)

    def play(*_: object) -> int:
        for _ in range(times):
            os.kill(os.getpid(), number)
        return 0

    launcher = FakeLauncher(play)
    assert (
        failing(plan(stage("a", ""), stage("b", ""), max_restarts=1), tmp_path, launcher).code
        is code
    )
    assert launcher.submitted == ["run/1/a"]
    is_second = [False, number == signal.SIGINT][:times]
    assert launcher.cancelled == [("run/1/a", now) for now in is_second]
    assert read_record(tmp_path / "runs/run").status is RunStatus.INTERRUPTED


def test_a_bug_of_the_launcher_does_not_leave_the_record_running(tmp_path: Path) -> None:
    def play(*_: object) -> int:
        raise ZeroDivisionError

    launcher = FakeLauncher(play)
    with pytest.raises(ZeroDivisionError):
        go(plan(stage("a", "")), tmp_path, launcher)
    assert read_record(tmp_path / "runs/run").status is RunStatus.FAILED
    assert launcher.cancelled == [("run/1/a", False)]


@pytest.mark.parametrize(
    ("codes", "states", "status"),
    [
        ({}, "pending pending", RunStatus.RUNNING),
        ({"a": 0, "b": 0}, "succeeded succeeded", RunStatus.SUCCEEDED),
        ({"a": 7}, "failed pending", RunStatus.FAILED),
        ({"a": 0, "b": 143}, "succeeded interrupted", RunStatus.INTERRUPTED),
    ],
)
def test_a_detached_run_is_brought_up_to_date_by_who_reads_it(
    codes: dict[str, int],
    states: str,
    status: RunStatus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = FakeCluster()
    go(detached(stage("a", ""), stage("b", "")), tmp_path, launcher)
    monkeypatch.setattr(launcher, "poll", lambda launch: codes.get(launch.key[-1]))
    monkeypatch.setattr("xp.execution.detached.detachable", lambda *_: launcher)
    run = tmp_path / "runs/run"
    record = current(run)
    assert record.status is read_record(run).status is status
    assert " ".join(state for state, _ in ends(record).values()) == states
    is_running = status is RunStatus.RUNNING
    assert bool(launcher.closed) is not is_running
    keys = ["run/1/a", "run/1/b"] * is_running
    assert [launch.key for launch in live(run, record)] == keys
    assert stop(run, record) == ["7", "8"] * is_running
    assert launcher.cancelled == [(key, False) for key in reversed(keys)]
