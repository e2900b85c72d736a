"""The child's side of an environment in a process of its own: its end."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

from xp.contrib.contracts.jobs import DEADLINE_S

CHILD = """
import os, signal
from xp.envs import rpc_server

class Handler:
    def end(self):
        os.kill(os.getpid(), signal.SIGTERM)  # the kernel's, right after the parent's end closed the connection
        open("tidied up", "w").close()

rpc_server.serve(lambda _: Handler())
"""


LATE = """
import threading, time
from xp.envs import rpc_server

class Handler:
    def wait(self, *_):
        parent_has_closed.wait()

    def end(self):
        parent_has_closed.set()
        time.sleep(0.5)  # the late answer is sent meanwhile

parent_has_closed = threading.Event()
rpc_server.serve(lambda _: Handler())
"""


def test_an_answer_after_the_parents_end_is_dropped_without_a_word() -> None:
    ours, theirs = multiprocessing.Pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", LATE, str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        stderr=subprocess.PIPE,
    )
    theirs.close()
    ours.send(None)
    ours.send(None)
    ours.send((0, "wait", 0, None))
    ours.close()
    assert child.communicate(timeout=DEADLINE_S) == (None, b"")


def test_a_signal_does_not_disturb_an_end_that_has_begun(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(theirs.fileno()), str(os.getpid())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
    )
    theirs.close()
    ours.send(None)
    ours.send(None)
    ours.close()
    assert child.wait(DEADLINE_S) == 0
    assert (tmp_path / "tidied up").exists()
