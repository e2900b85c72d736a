"""A signal that comes while an object is finalized, or just before a wait, ends a program like any other: Python drops
what its handler raises there, or runs its handler after the wait only."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading

import pytest

from xp import lost_signals
from xp.testing.jobs import PATIENCE_S

PROGRAM = """
import os, signal, time

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {number})
        time.sleep(600)

def work():
    Finalized()
    while True:
        time.sleep(0.1)
"""
PREPARE = """
from xp.tasks.prepare import Stopped, _stopping_on_signals
try:
    with _stopping_on_signals():
        work()
except Stopped as stopped:
    print(stopped.code)
"""
EVALUATION = """
from xp.errors import XpError
from xp.evaluation.ending import OrderlyEnd
try:
    with OrderlyEnd():
        work()
except XpError as error:
    print(error)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.scorecard(8)
@pytest.mark.parametrize(
    ("program", "number", "said"),
    [
        (PREPARE, "signal.SIGTERM", "143"),
        (PREPARE, "signal.SIGINT", "130"),
        (EVALUATION, "signal.SIGTERM", "the evaluation was stopped by SIGTERM"),
        (EVALUATION, "signal.SIGINT", "interrupted"),
    ],
)
def test_a_signal_within_a_finalizer_is_not_lost(program: str, number: str, said: str) -> None:
    words = [sys.executable, "-c", PROGRAM.format(number=number) + program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, said + "\n", "")


WHILE_ANOTHER_IS_TOLD = """
import sys

def slowly(dropped):
    os.kill(os.getpid(), {number})
    time.sleep(600)

class Faulty:
    def __del__(self):
        raise ValueError

sys.unraisablehook = slowly

def work():
    Faulty()
    while True:
        time.sleep(0.1)
"""
AT_ONCE = """
from xp import lost_signals
lost_signals.PAUSE_S = 0.0  # The signal is sent again as early as it can be.
"""


@pytest.mark.scorecard(8)
@pytest.mark.parametrize("before", [PROGRAM + AT_ONCE, PROGRAM + WHILE_ANOTHER_IS_TOLD])
@pytest.mark.parametrize(("program", "said"), [(PREPARE, "143"), (EVALUATION, "the evaluation was stopped by SIGTERM")])
def test_a_signal_is_not_lost_while_python_tells_of_a_dropped_exception(before: str, program: str, said: str) -> None:
    words = [sys.executable, "-c", before.format(number="signal.SIGTERM") + program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, said + "\n", "")


BEFORE_A_WAIT = """
import queue, signal, threading, time
from xp.lost_signals import next_of

def another(inbox):
    # The signal interrupts this thread and not the wait of the main one, as if it had come just before the wait.
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), {number})
    time.sleep(600)

def work():
    inbox = queue.SimpleQueue()
    threading.Thread(target=another, args=(inbox,), daemon=True).start()
    next_of(inbox)
"""


@pytest.mark.scorecard(8)
@pytest.mark.parametrize(("program", "said"), [(PREPARE, "143"), (EVALUATION, "the evaluation was stopped by SIGTERM")])
def test_a_signal_just_before_a_wait_for_an_event_ends_it(program: str, said: str) -> None:
    words = [sys.executable, "-c", BEFORE_A_WAIT.format(number="signal.SIGTERM") + program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, said + "\n", "")


def test_a_wait_for_an_event_returns_what_comes_later() -> None:
    inbox: queue.SimpleQueue[str] = queue.SimpleQueue()
    late = threading.Timer(3 * lost_signals.LOOK_S, inbox.put, ["event"])
    late.start()
    assert lost_signals.next_of(inbox) == "event"
    late.join()
