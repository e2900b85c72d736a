"""Exit codes of cluster jobs without a result, which job is followed, and how long its result is awaited."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.launching import launcher_spec, stage
from xp.errors import ExitCode, XpError
from xp.execution.launchers import follow as following
from xp.execution.launchers import ray, secrets_files, slurm, slurm_array
from xp.execution.launchers.base import Context, Launch
from xp.execution.launchers.node.job_spec import RESULT


@pytest.mark.parametrize(
    ("state", "left", "code"),
    [
        ("RUNNING", "0:0", None),
        ("FAILED", "7:0", 7),
        ("FAILED", "0:11", 128 + 11),
        ("CANCELLED", "0:15", 128 + 2),
        ("TIMEOUT", "0:0", 128 + 15),
        ("NODE_FAIL", "0:0", 128 + 15),
        ("OUT_OF_MEMORY", "0:125", 128 + 9),
    ],
)
def test_slurms_state_of_a_job_without_a_result(
    state: str, left: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"JobId=7 JobName=run-1-train UserId=root(0) JobState={state} Reason=None Requeue=0 ExitCode={left}\n"
    monkeypatch.setattr(
        slurm,
        "ask",
        lambda argv, **_: text if argv[-1] == "7" else "",
    )
    assert slurm.assumed_code("7") == code
    assert slurm.assumed_code("8") is None


@pytest.mark.parametrize(
    ("said", "code"), [("Invalid job id specified", 128 + 15), ("Unable to contact", None)]
)
def test_a_job_that_slurm_forgot_was_lost_with_its_machine(
    said: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: Any, **__: Any) -> str:
        raise XpError(said)

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm.assumed_code("7") == code


@pytest.mark.parametrize(
    ("status", "driver", "code"),
    [
        ("RUNNING", None, None),
        ("STOPPED", None, 128 + 15),
        ("FAILED", None, ExitCode.INTERNAL),
        ("FAILED", -9, 128 + 9),
    ],
)
def test_rays_state_of_a_job_without_a_result(
    status: str,
    driver: int | None,
    code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.job_submission import JobInfo, JobStatus

    info = JobInfo(status=JobStatus(status), entrypoint="", message="why", driver_exit_code=driver)
    launcher = ray.RayLauncher(launcher_spec("ray"), tmp_path)
    client = SimpleNamespace(get_job_info=lambda _: info)
    monkeypatch.setattr(launcher, "_client", lambda: client)
    launch = Launch("ray", "r/1/train", "raysubmit_1", "runs/r/attempt_1/train/log.txt", "")
    assert launcher._ended(launch) == code
    assert launcher._message(launch) == "why"


def test_a_ray_cluster_that_does_not_answer_is_lost_after_five_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = ray.RayLauncher(launcher_spec("ray"), tmp_path)
    clock = Clock()
    launcher._answered = 1000.0
    monkeypatch.setattr(ray, "time", clock)
    monkeypatch.setattr(launcher, "_client", lambda: 1 / 0)
    launch = Launch("ray", "r/1/train", "raysubmit_1", "runs/r/attempt_1/train/log.txt", "")
    clock.now += 300.0
    assert launcher._ended(launch) is None
    clock.now += 0.1
    assert launcher._ended(launch) == 128 + 15
    monkeypatch.setattr(launcher, "_head", SimpleNamespace(is_alive=False))
    clock.now = launcher._answered
    assert launcher._ended(launch) == 128 + 15


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("code", "deadline_s"), [(1, 10.0), (128 + 15, 2.0)])
def test_a_result_is_awaited_after_the_jobs_end(
    code: int, deadline_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    asked = []
    said = []
    monkeypatch.setattr(following, "time", clock)

    def ended() -> int | None:
        asked.append(clock.now - 1000.0)
        return code if len(asked) == 2 else None

    (tmp_path / "log.txt").write_text("its last line\n")
    assert following.follow(tmp_path, ended, lambda: " slurmstepd: killed \n", said.append) == code
    assert asked == pytest.approx([3.0, 6.0], abs=2 * following.LOOK_S + 0.01)
    assert clock.now - 1000.0 - asked[1] == pytest.approx(deadline_s, abs=2 * following.LOOK_S)
    assert (
        "".join(said) == (tmp_path / "log.txt").read_text() == "its last line\nslurmstepd: killed\n"
    )


def test_a_result_that_comes_late_is_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(following, "time", clock)

    def ended() -> int:
        (tmp_path / RESULT).write_text(
            json.dumps({"code": 7, "missing": [], "ended": "2026-01-01T00:00:00"})
        )
        return 128 + 15

    launcher = slurm.SlurmLauncher(launcher_spec("slurm"), tmp_path.parent)
    monkeypatch.setattr(launcher, "_ended", lambda _: ended())
    launch = Launch("slurm", "r/1/train", "7", f"{tmp_path.name}/log.txt", "")
    assert launcher.poll(launch) == 7
    assert launcher.wait(launch, lambda _: None) == 7


def test_secrets_of_a_run_are_its_users_alone_and_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    context = Context("r", 2, tmp_path / "outputs", "runs/r/attempt_2", {})
    assert secrets_files.write(context, "train", {}) is None
    assert secrets_files.write(context, "evaluate", {"KEY": "other"}) is not None
    secrets_files.file_of(context, "train").with_suffix(".part").write_text("of a killed xp")
    file = secrets_files.write(context, "train", {"KEY": "value"})
    token = secrets_files.write_token(context, "train")
    assert file is not None
    assert [path.name for path in (file, token)] == ["2.train.json", "2.train.token"]
    assert json.loads(file.read_text()) == {"KEY": "value"}
    assert len(token.read_text()) == 64
    modes = [oct(path.stat().st_mode)[-3:] for path in (file, token, file.parent)]
    assert modes == ["600", "600", "700"]
    (file.parent / "mine.txt").touch()
    slurm.SlurmLauncher(launcher_spec("slurm"), tmp_path).close(context)
    assert [path.name for path in file.parent.iterdir()] == ["mine.txt"]


def test_secrets_are_written_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for run_id, outputs in (("../r", "outputs"), ("r", ".xp")):
        context = Context(run_id, 1, tmp_path / outputs, "", {})
        with pytest.raises(XpError):
            secrets_files.write(context, "train", {"KEY": "value"})
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_is_held_in_arrays_until_all_its_runs_are_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    answers: list[str | XpError] = ["7\n", "8;cluster\n", "", "9", XpError("full"), ""]

    def ask(argv: list[str], **_: Any) -> str:
        shown = [word for word in argv[1:-1] if word.startswith(("--array", "--job-name"))]
        asked.append(" ".join([argv[0], *shown, argv[-1]]))
        answer = answers.pop(0)
        if isinstance(answer, XpError):
            raise answer
        return answer

    monkeypatch.setattr(slurm_array, "ask", ask)
    monkeypatch.setattr(slurm_array, "max_array_size", lambda: None)
    small = stage("a", "")
    resources = replace(small.job.resources, num_cpus=64, memory_gb=9.0)
    large = replace(small, job=replace(small.job, resources=resources))
    sweep = {"r1": [small], "r2": [small], "r3": [small, large]}
    arrays = slurm_array.SlurmArrays(launcher_spec("slurm"), tmp_path, sweep, {})
    scripts = tmp_path / "arrays"
    assert asked == [
        f"sbatch --array=0-1 --job-name=xp-r1 {scripts}/r1/array.sh",
        f"sbatch --array=0-0 --job-name=xp-r3 {scripts}/r3/array.sh",
    ]
    assert [arrays.has(name) for name in ("r1", "r3", "r4")] == [True, True, False]
    files = [Path("a.json"), Path("b.json")]
    places = [arrays.task_id(name, Path("code"), files) for name in ("r2", "r3")]
    assert places == ["7_1", "8_0"]
    assert (scripts / "r1/1.txt").read_text() == "code\na.json\nb.json\n"
    arrays.release()
    arrays.release()
    assert asked[2:] == ["scontrol 7,8"]
    with pytest.raises(XpError, match="full"):
        slurm_array.SlurmArrays(launcher_spec("slurm"), tmp_path, sweep, {})
    assert asked[-1] == "scancel 9"
