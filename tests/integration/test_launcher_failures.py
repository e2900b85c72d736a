"""Launchers whose programs are absent, fail, answer nonsense, or accept a job and never say so."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from filelock import FileLock

from tests.support.launching import ROOT, eventually, launcher_spec, plan, stage
from xp.cli.runs import cancel
from xp.composition import compose
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import ExitCode, XpError
from xp.execution.launchers import slurm
from xp.execution.launchers.base import Context, Launcher
from xp.execution.launchers.modal import ModalLauncher
from xp.execution.launchers.node.on_node import REQUEUE
from xp.execution.launchers.ray import RayLauncher
from xp.execution.launchers.slurm import SlurmLauncher
from xp.execution.launchers.slurm_job import array_script, batch_script
from xp.execution.record import LOCK, RunStatus, read_record
from xp.execution.supervise import dispatch
from xp.lib.loopback import free_ports
from xp.planning.job import Stage
from xp.planning.stages import trainer_resources

pytestmark = pytest.mark.integration

AWKWARD = 'it\'s "here"\n$(touch pwned); `touch pwned` \\ *'


def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> Path:
    """Put programs of these names first on PATH; returns their directory, where each may keep notes."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in texts.items():
        (place / name).write_text(f'#!/bin/sh\nhere="{place}"\n{text}\n')
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return place


TESTS_ONLY = 'case "$1" in --test-only) exit 0;; esac'
INVALID = "echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1"
REFUSALS: list[tuple[type[Launcher], dict[str, Any], str | None, tuple[str, ...]]] = [
    (SlurmLauncher, {}, INVALID, ("Invalid account",)),
    (SlurmLauncher, {}, f"{TESTS_ONLY}\nexit 0", ("answered ''",)),
    (SlurmLauncher, {}, None, ("sbatch is not on this machine's PATH",)),
    (SlurmLauncher, {"sbatch": {"mem": "1G"}}, "exit 0", ("xp sets mem itself",)),
    (ModalLauncher, {}, "exit", ("Token missing",)),
    (ModalLauncher, {}, "garbage", ("printed no app",)),
    (RayLauncher, {}, None, ("no Ray cluster answers", "launcher.start_head=true")),
]
"""Launcher, its options, the program that it calls (of Modal's stub: its fault; None: none), and words of the error."""


@pytest.mark.parametrize(("kind", "options", "program", "words"), REFUSALS)
def test_what_a_cluster_or_its_absence_says_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    options: dict[str, Any],
    program: str | None,
    words: tuple[str, ...],
) -> None:
    outputs = tmp_path / "outputs"
    monkeypatch.setattr(slurm, "LOOKUPS", 1)
    if kind is ModalLauncher:
        with_modal(tmp_path, monkeypatch, str(program))
    elif program is None:
        monkeypatch.setenv("PATH", str(tmp_path))
        options = (
            {"address": f"http://127.0.0.1:{free_ports(1)[0]}"} if kind is RayLauncher else options
        )
    else:
        programs(
            tmp_path,
            monkeypatch,
            sbatch=program,
            squeue="exit 0",
            scontrol="exit 1",
            scancel="exit 0",
        )
    spec: Any = launcher_spec(kind.name, **options)
    with pytest.raises(XpError) as caught:
        dispatch(
            plan(stage("a", "pass")).by(spec), kind(spec, outputs), outputs, echo=lambda _: None
        )
    assert all(word in str(caught.value) for word in words)
    assert caught.value.code == (ExitCode.CONFIG if options.get("sbatch") else ExitCode.RUNTIME)
    assert program is not None or not outputs.exists()


def test_a_job_that_slurm_took_silently_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = f"{TESTS_ONLY}\necho x >> $here/submitted; sleep 30"
    squeue = (
        'test -f $here/submitted && case "$*" in *--name=xp-run-1-a-*) echo 4711;; esac; exit 0'
    )
    place = programs(
        tmp_path, monkeypatch, sbatch=accepts, squeue=squeue, scontrol="exit 1", scancel="exit 0"
    )
    monkeypatch.setattr(slurm, "ANSWER_S", 1.0)
    context = LauncherSuite.make_context(tmp_path)
    launcher = SlurmLauncher(launcher_spec("slurm"), context.outputs)
    launch = launcher.submit(stage("a", "pass"), context)
    assert launch.native_id == "4711"
    another = SlurmLauncher(launcher_spec("slurm"), context.outputs)
    assert another.submit(stage("a", "pass"), context) == launch
    assert (place / "submitted").read_text() == "x\n"


LISTS = """test -f $here/cancelled && echo "JobState=CANCELLED ExitCode=0:15" || echo "JobState=PENDING ExitCode=0:0\""""
"""A scontrol that knows whether scancel was called."""


def test_a_run_that_another_command_asks_about_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = programs(
        tmp_path,
        monkeypatch,
        sbatch=f"{TESTS_ONLY}\necho 101",
        scontrol=LISTS,
        scancel="touch $here/cancelled",
    )
    spec = launcher_spec("slurm", detach=True)
    outputs = tmp_path / "outputs"
    one = plan(stage("a", "pass")).by(spec)
    dispatch(one, SlurmLauncher(spec, outputs), outputs, echo=lambda _: None)  # type: ignore[arg-type]
    lock = FileLock(outputs / "runs/run" / LOCK, thread_local=False)
    lock.acquire()

    def release() -> None:
        eventually((place / "cancelled").exists)
        lock.release(force=True)

    asking = Thread(target=release)
    asking.start()
    try:
        assert "asked for the end of job 101" in cancel(outputs / "runs/run")
    finally:
        asking.join()
    assert read_record(outputs / "runs/run").status is RunStatus.INTERRUPTED


def test_further_sbatch_options_reach_it_and_a_job_on_cpus_asks_for_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = programs(tmp_path, monkeypatch, sbatch='printf "%s\\n" "$@" > $here/argv; exit 0')
    launcher = SlurmLauncher(
        launcher_spec("slurm", sbatch={"qos": "high"}, account="us"), tmp_path / "outputs"
    )
    spec = compose(["hardware=cpu", "hardware.accelerators_per_node=2"])  # two processes
    needs = replace(trainer_resources(spec), num_cpus=3, memory_gb=1.5)
    two = replace(stage("a", "pass").job, resources=needs)
    launcher.check([Stage("a", two)], Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1"))
    asked = (place / "argv").read_text().split("\n")
    assert {"--qos=high", "--account=us", "--cpus-per-task=3", "--mem=1536M", "--requeue"} <= set(
        asked
    )
    assert not [text for text in asked if text.startswith(("--gres", "--partition"))]


def test_the_batch_script_is_shell_whatever_is_in_a_path(tmp_path: Path) -> None:
    context = LauncherSuite.make_context(tmp_path / AWKWARD)
    order = context.outputs / "runs/run/attempt_1/a/job.json"
    order.parent.mkdir(parents=True)
    argv = ["sbatch", f"--chdir={AWKWARD}"]
    text = batch_script(
        compose(["launcher=slurm"]).launcher, context, stage("a", "pass"), order, argv, None
    )
    (tmp_path / "job.sh").write_text(text)
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"]).returncode == 0
    echo = f'#!{sys.executable}\nimport sys; open("seen", "w").write(repr(sys.argv[1:]))\n'
    (tmp_path / "python").write_text(echo)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "job.sh").write_text(text.replace(sys.executable, "./python"))
    subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, env={**os.environ, "SLURM_JOB_ID": "7"}, timeout=200
    )
    assert (tmp_path / "seen").read_text() == repr(
        ["-m", "xp.execution.launchers.node.on_node", "7", str(order)]
    )
    assert not list(tmp_path.rglob("pwned"))


def with_modal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> Path:
    cloud = tmp_path / "cloud"
    cloud.mkdir()
    (cloud / "FAIL").write_text(fault)
    stub = ROOT / "tests/stubs/modal_cloud.py"
    programs(tmp_path, monkeypatch, modal=f'exec "{sys.executable}" "{stub}" "{cloud}" "$@"')
    monkeypatch.setattr(ModalLauncher, "ask_s", 0.2)
    return cloud


def test_secrets_for_a_ray_cluster_elsewhere_need_a_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "XPCANARY_remote")
    spec = launcher_spec("ray", address="http://192.0.2.7:8265")
    one = plan(stage("a", "pass", secrets={"KEY": "MY_KEY"})).by(spec)
    with pytest.raises(XpError, match=r"launcher\.secrets_file") as caught:
        dispatch(one, RayLauncher(spec, tmp_path / "outputs"), tmp_path / "outputs")  # type: ignore[arg-type]
    assert caught.value.code == ExitCode.SECRET
    assert "XPCANARY" not in str(caught.value)
    assert not (tmp_path / "outputs").exists()


NODE = f"""
import sys
sys.exit({REQUEUE})
"""


@pytest.mark.parametrize(("is_array", "asked"), [(False, "requeue 7"), (True, "requeue 5_1")])
def test_a_stage_that_is_queued_again_leaves_other_tasks_of_its_array(
    tmp_path: Path, is_array: bool, asked: str
) -> None:
    code = tmp_path / "code"
    programs = tmp_path / "bin"
    (code / "xp/execution/launchers/node").mkdir(parents=True)
    for package in ("xp", "xp/execution/launchers", "xp/execution/launchers/node"):
        (code / package / "__init__.py").touch()
    (code / "xp/execution/launchers/node/on_node.py").write_text(NODE)
    programs.mkdir()
    (programs / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    (programs / "scontrol").chmod(0o755)
    (tmp_path / "1.txt").write_text(f"{code}\njob.json\n")
    context = Context("r", 1, tmp_path, "x", {})
    one = stage("train", "pass")
    spec = compose(["launcher=slurm", "launcher.setup=[: module load cuda]"]).launcher
    script = (
        array_script(spec, tmp_path, ["sbatch"])
        if is_array
        else batch_script(spec, context, one, tmp_path / "j", ["sbatch"], None)
    )
    script = script.replace(str(tmp_path / context.code), str(code))
    # As Slurm sets them: the id of the whole array is the job id of one of its tasks.
    ids = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    environ = {**os.environ, **ids, "PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, cwd=tmp_path, check=False, timeout=60
    )
    assert done.returncode == REQUEUE
    assert (tmp_path / "asked").read_text().strip() == asked
