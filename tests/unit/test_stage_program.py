"""The frame of a stage's program: one message and an exit code, whenever TERM comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from xp.errors import ExitCode
from xp.testing.jobs import PATIENCE_S

PROGRAM = """
import os, signal, sys, time
from xp.errors import ExitCode, XpError
from xp.worker.program import run_stage

def term():
    os.kill(os.getpid(), signal.SIGTERM)

class TermWhileTold(XpError):
    def __str__(self):
        term()
        return "a fault"

def while_it_works(argv):
    term()

class TermWhileItEnds:
    def __del__(self):
        term()
        time.sleep(600)

def in_a_finalizer(argv):
    TermWhileItEnds()
    while True:
        time.sleep(0.1)

def while_a_fault_is_told(argv):
    raise TermWhileTold("a fault", ExitCode.TASKS)

code = run_stage(globals()[sys.argv[1]], [])
print(code, flush=True)
if sys.argv[2:]:
    term()
"""


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize("when", ["while_it_works", "while_a_fault_is_told", "in_a_finalizer"])
def test_term_is_told_without_a_traceback(when: str) -> None:
    done = ended(when)
    assert done.stdout == f"{int(ExitCode.TERMINATED)}\n"
    assert done.stderr == "xp: terminated\n"


def test_a_second_term_ends_what_the_first_one_did_not() -> None:
    done = ended("while_it_works", "again")
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "xp: terminated\n")
