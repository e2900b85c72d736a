"""Limits of a process that runs what others wrote."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xp.testing.jobs import PATIENCE_S

THREADS = """
import json, threading
from xp.envs.bounds import allow_thread, bound_memory

bound_memory(0.5, threads=200)
together = threading.Barrier(151)

def wait():
    together.wait()
    together.wait()

for _ in range(150):
    allow_thread()
    threading.Thread(target=wait).start()
together.wait()
said = []
for size in (100_000_000, 600_000_000):
    try:
        said.append(len(bytes(size)))
    except MemoryError:
        said.append("MemoryError")
print(json.dumps(said))
together.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")
def test_stacks_of_threads_take_nothing_from_the_memory_and_give_nothing_to_it() -> None:
    """150 stacks of 8 MB are more than twice the limit."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == '[100000000, "MemoryError"]\n', done.stderr
