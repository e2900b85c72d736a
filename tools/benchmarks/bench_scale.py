"""Measures the growth of memory, threads and file descriptors with sessions.

    python -m tools.benchmarks scale

Sessions are those of the real openreward server on 127.0.0.1.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tests.support.ors_server import COUNTER, rules
from xp.envs.base import Task
from xp.envs.local_server import LocalServer
from xp.envs.openreward import OpenRewardProvider

SIZES = (256, 1024, 4096)
CALLERS = 256
"""Threads that open, call and close sessions."""


@dataclass(frozen=True)
class Held:
    """Memory and handles of a process."""

    memory: int
    """Bytes that are resident."""
    sockets: int
    descriptors: int
    threads: int

    @staticmethod
    def by(process: psutil.Process) -> Held:
        sockets = len(process.net_connections(kind="inet"))
        return Held(process.memory_info().rss, sockets, process.num_fds(), process.num_threads())


def main() -> None:
    """Print what each size holds."""
    for number in SIZES:
        sessions(number)


def sessions(number: int) -> None:
    """Open so many sessions at the same time, call each once, close all."""
    task = Task("bench", "train", 0)
    with LocalServer(COUNTER) as server, ThreadPoolExecutor(CALLERS) as callers:
        own = psutil.Process()
        (serving,) = (child for child in own.children() if child.is_running())
        environ = {**os.environ, "OPENREWARD_API_KEY": server.key}
        limits = {"max_sessions": number, "create_timeout_s": 600.0, "call_timeout_s": 600.0}
        provider = OpenRewardProvider(
            rules(target=server.url, allowed_origins=(server.url,), variant="counter", **limits),
            environ,
        )
        provider.open(task).close()
        list(callers.map(lambda _: time.sleep(0.1), range(CALLERS)))
        before = Held.by(own)
        served_before = Held.by(serving)
        began = time.monotonic()
        opened = list(callers.map(lambda _: provider.open(task), range(number)))
        took = time.monotonic() - began
        began = time.monotonic()
        with highest(own) as calling:
            list(callers.map(lambda session: session.call("say", {"value": "x" * 200}), opened))
        called = time.monotonic() - began
        full = Held.by(own)
        served = Held.by(serving)
        list(callers.map(lambda session: session.close(), opened))
        after = Held.by(own)
        provider.close()
    print(
        f"{number} sessions: opened {number / took:.0f}/s, called {number / called:.0f}/s; "
        f"{(full.memory - before.memory) / number / 1e3:.1f} kB each here, "
        f"{(served.memory - served_before.memory) / number / 1e3:.1f} kB in the server; while calling {calling}; "
        f"sockets {before.sockets} -> {full.sockets} -> {after.sockets}, "
        f"descriptors {before.descriptors} -> {full.descriptors} -> {after.descriptors}, "
        f"threads {before.threads} -> {full.threads} -> {after.threads}",
        flush=True,
    )


@contextmanager
def highest(process: psutil.Process) -> Iterator[dict[str, int]]:
    """The largest numbers of sockets and threads while the block lasts."""
    found = {"sockets": 0, "threads": 0}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            now = Held.by(process)
            found.update(
                sockets=max(found["sockets"], now.sockets),
                threads=max(found["threads"], now.threads),
            )

    thread = threading.Thread(target=watch)
    thread.start()
    yield found
    is_over.set()
    thread.join()


if __name__ == "__main__":
    main()
