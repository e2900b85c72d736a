"""Runs of real processes under the local launcher: output, secrets, trackers, two supervisors."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support.launching import (
    Supervisor,
    eventually,
    forms,
    plan,
    run,
    stage,
)
from xp.errors import ExitCode, XpError
from xp.execution.record import RunStatus, read_record

pytestmark = pytest.mark.integration

CANARY = 'XPCANARY_7f3a/"q" $(touch pwned)\nsecond XPCANARY_line'


MAKE = """
import hashlib, json, os
os.makedirs("made", exist_ok=True)
open("count", "a").write("x")
open("made/weights", "w").write("w" * 1000)
digest = hashlib.sha256(b"w" * 1000).hexdigest()
open("made/manifest.json", "w").write(json.dumps({"files": {"weights": digest}}))
"""


def test_a_damaged_result_is_made_again_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = stage("model", MAKE, done="made/manifest.json")
    for number, name in enumerate(("one", "two")):
        assert run(plan(make, run_id=name), tmp_path).attempts[0].stages[0].status is (
            RunStatus.CACHED if number else RunStatus.SUCCEEDED
        )
    weights = tmp_path / "made/weights"
    with monkeypatch.context() as patch:
        patch.setattr("xp.lib.verified.file_digest", None)
        assert (
            run(plan(make, run_id="three"), tmp_path).attempts[0].stages[0].status
            is RunStatus.CACHED
        )
    for number, damage in enumerate(("w" * 999 + "v", "w" * 500)):
        weights.write_text(damage)
        screen = []
        run(plan(make, run_id=f"damaged-{number}"), tmp_path, screen)
        assert (
            "".join(screen).count("xp: model: made is damaged (weights does not match its sha256)")
            == 1
        )
        assert weights.read_text() == "w" * 1000
    assert (tmp_path / "count").read_text() == "xxx"


def test_a_canary_is_in_no_byte_no_argv_and_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", CANARY)
    code = """
import base64, json, os, subprocess, sys, time, urllib.parse
key = os.environ["KEY"]
print(key)
print(json.dumps({"key": key}), urllib.parse.quote(key), base64.b64encode(key.encode()).decode(), repr(key), flush=True)
print("progress " + key.splitlines()[0] + "\\r", end="", flush=True)
time.sleep(0.3)
child = "import os, time; print(os.environ['KEY'])\\nwhile not os.path.exists('seen'): time.sleep(0.02)"
subprocess.run([sys.executable, "-c", child])
raise RuntimeError("cannot log in with " + key)
"""
    argv: set[str] = set()
    is_over = threading.Event()
    watcher = threading.Thread(target=_watch_argv, args=(argv, is_over, tmp_path / "seen"))
    watcher.start()
    screen: list[str] = []
    with pytest.raises(XpError) as caught:
        run(plan(stage("a", code, secrets={"KEY": "MY_KEY"})), tmp_path, screen)
    is_over.set()
    watcher.join()
    assert len(argv) >= 3  # the guard, the job and its child
    written = b"\n".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (
        written.decode(errors="replace"),
        "".join(screen),
        str(caught.value),
        "\n".join(argv),
    ):
        for form in forms(CANARY):
            assert form not in text
    assert "cannot log in with" in str(caught.value)
    assert "MY_KEY" in (tmp_path / "runs/run/run.json").read_text()
    assert not (tmp_path / "pwned").exists()


def test_two_supervisors_cannot_run_the_same_run(tmp_path: Path) -> None:
    wait = "import os, time\nopen('up', 'w')\nwhile not os.path.exists('go'): time.sleep(0.02)"
    first = Supervisor(tmp_path, [wait])
    eventually(lambda: (tmp_path / "up").exists())
    for attempt in (1, 2):
        code, output = Supervisor(tmp_path, [wait], attempt=attempt).end()
        assert code == ExitCode.RUN_DIR
        assert "Traceback" not in output
    assert "running already" in output
    (tmp_path / "go").touch()
    assert first.end()[0] == 0
    assert len(read_record(tmp_path / "runs/run").attempts) == 1


def test_what_a_job_leaves_behind_when_it_ends_is_ended_too(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "open('pid', 'w').write(str(child.pid))"
    )
    began = time.monotonic()
    assert run(plan(stage("a", code)), tmp_path).status is RunStatus.SUCCEEDED
    assert time.monotonic() - began < 300
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid)


def _watch_argv(seen: set[str], is_over: threading.Event, enough: Path) -> None:
    """Adds the command lines of this process's descendants; makes the file when the one of the job's child is there."""
    me = psutil.Process()
    while not is_over.wait(0.02):
        for process in me.children(recursive=True):
            try:
                seen.add(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        if any("'seen'" in argv and "subprocess" not in argv for argv in seen):
            enough.touch()
