"""Signals to a supervisor whose job ignores them, has children of all kinds, and must not outlive the run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.launching import (
    STUBBORN_TREE,
    Supervisor,
    eventually,
    is_alive,
    plan,
    run,
    stage,
    statuses,
)
from xp.errors import ExitCode

pytestmark = pytest.mark.integration

POLITE = """
import signal, sys, time
def end(*_):
    print("tidied up", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open("up", "w").close()
while True:
    time.sleep(0.1)  # Not once: a signal that comes just before a sleep does not shorten it.
"""


def test_a_signal_ends_the_whole_tree_after_the_grace(tmp_path: Path) -> None:
    number = signal.SIGINT
    code = ExitCode.INTERRUPTED
    supervisor = Supervisor(tmp_path, [STUBBORN_TREE, "open('never', 'w')"], grace_s=1.0)
    tree = supervisor.tree()
    assert all(map(is_alive, tree))
    began = time.monotonic()
    supervisor.send(number)
    ended = supervisor.end()
    took = time.monotonic() - began
    assert ended.returncode == code
    assert took > 0.9
    assert not any(map(is_alive, tree))
    assert statuses(tmp_path) == {"s0": "interrupted", "s1": "pending"}
    assert "resume" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert not (tmp_path / "never").exists()


def test_a_background_run_ends_by_a_signal_not_its_terminal(tmp_path: Path) -> None:
    """`nohup python -m xp &` in a script: the shell ignores INT and HUP for it."""
    supervisor = Supervisor(tmp_path, [POLITE], first=_ignore)
    eventually(lambda: (tmp_path / "up").exists() and statuses(tmp_path) == {"s0": "running"})
    supervisor.send(signal.SIGHUP)
    time.sleep(0.5)
    assert statuses(tmp_path) == {"s0": "running"}
    supervisor.send(signal.SIGTERM)
    ended = supervisor.end()
    assert ended.returncode == ExitCode.TERMINATED
    assert "tidied up" in ended.stdout
    assert statuses(tmp_path) == {"s0": "interrupted"}


def _ignore() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_a_second_interrupt_kills_at_once(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path, [STUBBORN_TREE], grace_s=600.0)
    tree = supervisor.tree()
    supervisor.send(signal.SIGINT)
    time.sleep(0.6)
    assert all(is_alive(pid) for pid in tree[:3])
    # A supervisor that was slow to hear the first takes the next for the same key press.
    while supervisor.process.is_alive():
        supervisor.send(signal.SIGINT)
        supervisor.process.join(30)
    ended = supervisor.end()
    assert ended.returncode == ExitCode.INTERRUPTED
    assert not any(map(is_alive, tree))


def test_a_job_can_still_use_its_children_while_it_tidies_up(tmp_path: Path) -> None:
    server = "print(input()); print(input())"
    code = f"""
import signal, subprocess, sys, time
server = subprocess.Popen([sys.executable, "-uc", {server!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def ask(text):
    server.stdin.write(text + "\\n"); server.stdin.flush()
    return server.stdout.readline()
def end(*_):
    time.sleep(0.2)
    print("sessions closed:", ask("close"), flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
ask("open")
open("up", "w").close()
while True:
    time.sleep(0.1)  # Not once: a signal that comes just before a sleep does not shorten it.
"""
    supervisor = Supervisor(tmp_path, [code], grace_s=600.0)
    eventually(lambda: (tmp_path / "up").exists())
    supervisor.send(signal.SIGINT)
    ended = supervisor.end()
    assert ended.returncode == ExitCode.INTERRUPTED
    assert "sessions closed: close" in ended.stdout


def test_a_resume_waits_until_the_killed_attempt_is_gone(tmp_path: Path) -> None:
    first = Supervisor(tmp_path, [STUBBORN_TREE], grace_s=1.0)
    tree = first.tree()
    eventually(lambda: statuses(tmp_path) == {"s0": "running"})
    first.send(signal.SIGKILL)
    first.process.join()
    assert statuses(tmp_path) == {"s0": "running"}
    check = f"import os; print([p for p in {tree} if os.path.exists(f'/proc/{{p}}')])"
    screen: list[str] = []
    run(plan(stage("s0", check)).at(2), tmp_path, screen)
    assert "".join(screen) == "[]\n"
    assert statuses(tmp_path) == {"s0": "succeeded"}
