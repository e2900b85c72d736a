"""`launcher=slurm` against a real Slurm of one node, which tests/slurm/setup.sh makes as root."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.child import ended
from tests.support.detaching import DetachingContract
from tests.support.launching import eventually, forms, launcher_spec, plan, stage
from xp.contrib.contracts.launcher import LauncherSuite
from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Context, Launcher
from xp.execution.launchers.slurm import SlurmLauncher, assumed_code
from xp.execution.supervise import dispatch
from xp.planning.job import Resources, Stage

SETUP = Path(__file__).parent.parent / "slurm" / "setup.sh"


def has_slurm() -> bool:
    """Whether a node is up."""
    if shutil.which("sinfo") is None:
        return False
    found = ended(["sinfo", "--noheader", "--format=%T"])
    return found.returncode == 0 and bool(found.stdout.strip())


pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
]


@pytest.fixture(autouse=True, scope="module")
def slurm() -> None:
    """Asks where the tests run: a cluster that is down answers after seconds, to each process that collects them."""
    if not has_slurm():
        pytest.skip(f"no Slurm here; as root: {SETUP}")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets files of a test lie in a home of its own, which the one node sees."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    return made


class TestSlurmLauncher(LauncherSuite):
    """`launcher=slurm`."""

    @pytest.fixture
    def launcher(self, tmp_path: Path) -> Launcher:
        return SlurmLauncher(launcher_spec("slurm", grace_s=1.0), tmp_path / "outputs")


class TestDetachedSlurm(DetachingContract):
    """`launcher=slurm launcher.detach=true`."""

    name = "slurm"

    @pytest.fixture
    def launcher(self, outputs: Path) -> Launcher:
        return SlurmLauncher(launcher_spec("slurm", grace_s=1.0, detach=True), outputs)

    # What ends a stage is read as that of one which is waited for.
    test_a_failed_stage_ends_the_run_and_the_next_one_never_starts = pytest.mark.slow(
        DetachingContract.test_a_failed_stage_ends_the_run_and_the_next_one_never_starts
    )
    test_missing_outputs_are_a_failure_there_too = pytest.mark.slow(
        DetachingContract.test_missing_outputs_are_a_failure_there_too
    )


@pytest.mark.slow  # Slurm waits two minutes before it starts a requeued job
def test_a_preempted_stage_is_queued_again_with_its_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "XPCANARY preempted")
    code = """
import os, sys, time
assert os.environ["KEY"] == "XPCANARY " + "preempted"
begun = open("begun", "a"); begun.write(os.environ.get("SLURM_RESTART_COUNT", "0")); begun.close()
while open("begun").read() != "01": time.sleep(0.05)
open("result", "w").write("done")
"""
    spec = launcher_spec("slurm", grace_s=1.0)
    outputs = tmp_path / "outputs"
    launcher = SlurmLauncher(spec, outputs)
    one = plan(stage("train", code, secrets={"KEY": "MY_KEY"}, outputs=("result",)))
    codes: list[str] = []
    runner = threading.Thread(
        target=lambda: codes.append(
            dispatch(one.by(spec), launcher, outputs, echo=lambda _: None).status
        )  # type: ignore[arg-type]
    )
    runner.start()
    eventually(lambda: (outputs / "begun").exists())
    native_id = json.loads((outputs / "runs/run/attempt_1/train/submitted.json").read_text())[0][
        "native_id"
    ]
    subprocess.run(["scontrol", "requeue", native_id], check=True)  # as preemption does
    runner.join(150)
    assert codes == ["succeeded"]
    assert (outputs / "result").read_text() == "done"


def test_what_no_node_could_ever_run_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    launcher = SlurmLauncher(launcher_spec("slurm"), tmp_path / "outputs")
    large = replace(
        stage("train", "pass").job,
        resources=Resources(
            "h100",
            9,
            1,
            1,
            1.0,
        ),
    )
    with pytest.raises(XpError, match="Requested node configuration is not available") as caught:
        launcher.check(
            [Stage("train", large)], Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
        )
    assert caught.value.code == ExitCode.RUNTIME
    wrong = SlurmLauncher(launcher_spec("slurm", partition="no-such"), tmp_path / "outputs")
    with pytest.raises(XpError, match="invalid partition"):
        wrong.check(
            [stage("train", "pass")], Context("run", 1, tmp_path / "outputs", "runs/run/attempt_1")
        )
    assert not (tmp_path / "outputs").exists()


def test_a_second_submission_that_slipped_through_leaves_the_stage_alone(tmp_path: Path) -> None:
    context = LauncherSuite.make_context(tmp_path)
    once = stage("once", "open('count', 'a').write('x'); import time; time.sleep(1)")
    launcher = SlurmLauncher(launcher_spec("slurm"), context.outputs)
    first = launcher.submit(once, context)
    script = context.outputs / "runs/run/attempt_1/once/job.sh"
    eventually(lambda: script.with_name("claim.json").exists())
    other = ended(["sbatch", "--parsable", f"--output={tmp_path}/other.out", script])
    assert launcher.wait(first, lambda _: None) == 0
    eventually(lambda: assumed_code(other.stdout.strip()) is not None)
    assert assumed_code(other.stdout.strip()) == ExitCode.RUN_DIR
    assert "leaves it alone" in (tmp_path / "other.out").read_text()
    assert (context.outputs / "count").read_text() == "x"


CANARY = 'XPCANARY_77aa/"q" $(touch pwned)\nsecond XPCANARY_line; rm -rf .'
SPOOL = Path("/var/lib/xp-slurm")
"""Where tests/slurm/setup.sh lets Slurm keep what it knows of jobs."""


def test_a_canary_is_in_no_byte_of_slurm_and_no_argv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", CANARY)
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "XPCANARY_nobody_declared_it")
    monkeypatch.setenv("XP_PASS_ENV", "SOME_SERVICE_TOKEN")
    code = """
import base64, hashlib, json, os, sys, time, urllib.parse
key = os.environ["KEY"]
assert hashlib.sha256(key.encode()).hexdigest() == sys.argv[1]
assert os.environ["SOME_SERVICE_TOKEN"].endswith("nobody_declared_it")
print(key, json.dumps({"key": key}), urllib.parse.quote(key), base64.b64encode(key.encode()).decode(), repr(key))
print(os.environ["SOME_SERVICE_TOKEN"], flush=True)
open("ready", "w").close()
while not os.path.exists("go"): time.sleep(0.05)
raise RuntimeError("cannot log in with " + key)
"""
    outputs = tmp_path / "outputs"
    spec = launcher_spec("slurm", grace_s=1.0)
    kept: list[str] = []

    def look() -> None:
        try:
            eventually(lambda: (outputs / "ready").exists())
            for path in SPOOL.rglob("*"):
                with suppress(FileNotFoundError):  # Slurm removes those of other jobs meanwhile.
                    if path.is_file() and not path.name.endswith(".log"):
                        kept.append(path.read_bytes().decode(errors="replace"))
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    kept.append(" ".join(process.cmdline()))
            kept.append(ended(["scontrol", "show", "job", "-dd"]).stdout)
        finally:
            (outputs / "go").touch()  # or the job, and with it the test, would wait for ever

    looking = threading.Thread(target=look)
    looking.start()
    screen: list[str] = []
    digest = hashlib.sha256(CANARY.encode()).hexdigest()
    one = plan(stage("train", code, digest, secrets={"KEY": "MY_KEY"})).by(spec)
    with pytest.raises(XpError, match="cannot log in with") as caught:
        dispatch(one, SlurmLauncher(spec, outputs), outputs, echo=screen.append)  # type: ignore[arg-type]
    looking.join()
    assert any("on_node" in text for text in kept)
    written = [
        path.read_bytes().decode(errors="replace") for path in outputs.rglob("*") if path.is_file()
    ]
    for text in (*written, *screen, str(caught.value), *kept):
        for form in forms(CANARY):
            assert form not in text
    assert not (outputs / "pwned").exists()
    assert not list((tmp_path / "home/.xp/secrets").rglob("*"))
