"""Runs that are refused before anything is made: directories, names, paths, secrets and launchers; and resuming."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_launcher import FakeLauncher, failing, go
from tests.support.launching import Limits, plan, stage
from xp.errors import ExitCode


def test_a_run_directory_that_exists_is_never_used_again(tmp_path: Path) -> None:
    go(plan(stage("a", "")), tmp_path)
    before = (tmp_path / "runs/run/run.json").read_bytes()
    error = failing(plan(stage("a", "")), tmp_path)
    assert error.code == ExitCode.RUN_DIR
    assert "resume=run" in str(error)
    assert (tmp_path / "runs/run/run.json").read_bytes() == before


def test_a_run_directory_holds_the_spec_the_plan_and_the_code(tmp_path: Path) -> None:
    go(plan(stage("a", "")), tmp_path)
    run = tmp_path / "runs/run"
    assert {"attempt_1", "lock.json", "run.json", "spec.yaml"} <= {*os.listdir(run)}
    assert (run / "attempt_1/plan.json").read_text() == plan(stage("a", "")).to_json()
    source = Path(__file__).parents[2] / "xp/execution/supervise.py"
    assert (run / "attempt_1/code/xp/execution/supervise.py").read_text() == source.read_text()
    assert not list((run / "attempt_1/code").rglob("__pycache__"))


def test_resume_makes_a_second_attempt_and_overwrites_nothing(tmp_path: Path) -> None:
    failing(
        plan(stage("a", ""), stage("b", "")),
        tmp_path,
        FakeLauncher([0, 9]),
    )
    first = {
        path: path.read_bytes()
        for path in (tmp_path / "runs/run/attempt_1").rglob("*")
        if path.is_file()
    }
    spec = (tmp_path / "runs/run/spec.yaml").read_bytes()
    record = go(plan(stage("a", ""), stage("b", "")).at(2), tmp_path)
    assert [attempt.status.value for attempt in record.attempts] == ["failed", "succeeded"]
    assert {path: path.read_bytes() for path in first} == first
    assert (tmp_path / "runs/run/spec.yaml").read_bytes() == spec
    assert (tmp_path / "runs/run/attempt_2/plan.json").is_file()


def test_trackers_that_nobody_could_feed_are_refused(tmp_path: Path) -> None:
    tracked = replace(plan(stage("a", "")).spec, tracking=("tensorboard",))
    detached = replace(plan(stage("a", "")), spec=replace(tracked, launcher=Limits(detach=True)))
    error = failing(detached, tmp_path)
    assert error.code == ExitCode.PLAN
    assert "tracking=tensorboard needs a process here" in str(error)
    assert "set tracking=[], or launcher.detach=false" in str(error)
    go(replace(detached, spec=tracked), tmp_path)


def test_resume_of_a_run_that_is_not_there_creates_nothing(tmp_path: Path) -> None:
    assert failing(plan(stage("a", "")).at(2), tmp_path).code == ExitCode.RUN_DIR
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../evil",
        "/abs",
        "a/b",
        "-rf",
        "x" * 300,
        ".hidden",
    ],
)
def test_names_that_could_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    outputs = tmp_path / "outputs"
    assert failing(replace(plan(stage("a", "")), run_id=name), outputs).code == ExitCode.RUN_DIR
    assert failing(plan(stage(name, "")), outputs).code == ExitCode.RUN_DIR
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "job", [{"files": {"../x": ""}}, {"outputs": ("/etc/passwd",)}, {"done": "a/../../b"}]
)
def test_paths_of_a_job_that_lead_out_of_the_outputs_are_refused(
    tmp_path: Path, job: dict[str, Any]
) -> None:
    outputs = tmp_path / "outputs"
    assert failing(plan(stage("a", "", **job)), outputs).code == ExitCode.RUN_DIR
    assert os.listdir(tmp_path) == []


def test_an_unresolved_secret_stops_the_run_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_KEY", raising=False)
    error = failing(
        plan(stage("a", ""), stage("b", "", secrets={"KEY": "MY_KEY"})), tmp_path / "outputs"
    )
    assert error.code == ExitCode.SECRET
    assert "MY_KEY" in str(error)
    assert os.listdir(tmp_path) == []


def test_each_stage_gets_its_own_secrets_and_the_record_only_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "XPCANARY_1")
    monkeypatch.setenv("YOUR_KEY", "XPCANARY_2")
    stages = (
        stage("a", "", secrets={"KEY": "MY_KEY"}),
        stage("b", "", secrets={"KEY": "YOUR_KEY"}),
        stage("c", ""),
    )
    launcher = FakeLauncher()
    record = go(plan(*stages), tmp_path, launcher)
    assert launcher.secrets == {"a": {"KEY": "XPCANARY_1"}, "b": {"KEY": "XPCANARY_2"}, "c": {}}
    assert record.secrets == ("MY_KEY", "YOUR_KEY")
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and b"XPCANARY" in path.read_bytes()
    ]
