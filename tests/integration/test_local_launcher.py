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
        with pytest.raises(XpError) as caught:
            run(plan(stage("s0", wait)).at(attempt), tmp_path)
        assert caught.value.code is ExitCode.RUN_DIR
    assert "running already" in str(caught.value)
    (tmp_path / "go").touch()
    assert first.end().returncode == 0
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
