"""Measures the growth of memory, threads and file descriptors with sessions, long transcripts and steps.

    python -m tools.benchmarks scale

Sessions are those of the real openreward server on 127.0.0.1. Transcripts are written by the recorder of every backend.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.ors_server import COUNTER, rules
from xp.envs.base import Message, Task
from xp.envs.local_server import LocalServer
from xp.envs.openreward import OpenRewardProvider
from xp.episode.outcome import EpisodeResult, EpisodeStatus
from xp.episode.trajectory import Tokens, Trajectory, TrajectoryWriter

SIZES = (256, 1024, 4096)
CALLERS = 256
"""Threads that open, call and close sessions."""
EPISODES = 32 * 16
TURNS = 64
TOKENS = 131_072
"""Tokens of one episode, of four characters each."""
LARGE_STEPS = 2
STEPS = 200
SHARE = 64
"""A step of the 200 has this part of a large one's text: 200 large ones would fill a disk."""


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
    """Print what each size holds, and what two hundred steps leave behind."""
    transcripts()
    for number in SIZES:
        sessions(number)


def sessions(number: int) -> None:
    """Open so many sessions at the same time, call each once, close all."""
    task = Task("bench", "train", 0)
    with LocalServer(COUNTER) as server, ThreadPoolExecutor(CALLERS) as callers:
        own = psutil.Process()
        (serving,) = (one for one in own.children() if one.is_running())
        environ = {**os.environ, "OPENREWARD_API_KEY": server.key}
        limits = {"max_sessions": number, "create_timeout_s": 600.0, "call_timeout_s": 600.0}
        provider = OpenRewardProvider(
            rules(target=server.url, allowed_origins=(server.url,), variant="counter", **limits), environ
        )
        provider.open(task).close()
        list(callers.map(lambda _: time.sleep(0.1), range(CALLERS)))
        before, served_before = Held.by(own), Held.by(serving)
        began = time.monotonic()
        opened = list(callers.map(lambda _: provider.open(task), range(number)))
        took = time.monotonic() - began
        began = time.monotonic()
        with highest(own) as calling:
            list(callers.map(lambda session: session.call("say", {"value": "x" * 200}), opened))
        called = time.monotonic() - began
        full, served = Held.by(own), Held.by(serving)
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
    found, is_over = {"sockets": 0, "threads": 0}, threading.Event()

    def watch() -> None:
        while not is_over.wait(0.05):
            now = Held.by(process)
            found.update(sockets=max(found["sockets"], now.sockets), threads=max(found["threads"], now.threads))

    thread = threading.Thread(target=watch)
    thread.start()
    yield found
    is_over.set()
    thread.join()


def transcripts() -> None:
    """Write steps of 32 x 16 episodes, large ones first; then watch memory over many smaller ones."""
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trajectories/episodes.jsonl"
        base = process.memory_info().rss
        with TrajectoryWriter(path) as writer:
            for step in range(LARGE_STEPS):
                began, used = time.monotonic(), time.process_time()
                for number in range(EPISODES):
                    writer.write(_episode(step, number, TOKENS))
                size, seconds = path.stat().st_size, time.monotonic() - began
                print(
                    f"step {step + 1}: {EPISODES} episodes of {TOKENS:,} tokens, {size / 1e6:.0f} MB in "
                    f"{seconds:.1f} s ({time.process_time() - used:.1f} s CPU, {seconds / EPISODES * 1e3:.0f} ms an "
                    f"episode); memory +{(process.memory_info().rss - base) / 1e6:.0f} MB",
                    flush=True,
                )
                os.truncate(path, 0)
            seen: dict[int, int] = {}
            for step in range(STEPS):
                for number in range(EPISODES):
                    writer.write(_episode(step, number, TOKENS // SHARE))
                seen[step + 1] = process.memory_info().rss
                os.truncate(path, 0)
    shown = {step: f"{(seen[step] - seen[1]) / 1e6:+.1f} MB" for step in (10, 50, 100, STEPS)}
    print(f"{STEPS} steps of {EPISODES} episodes, memory since the first: {shown}", flush=True)


def _episode(step: int, number: int, num_tokens: int) -> Trajectory:
    """An episode whose turns are half the model's and half its tools'."""
    text = f"Clue {number} of step {step} points to the cellar. "
    text = (text * (num_tokens * 4 // TURNS // len(text) + 1))[: num_tokens * 4 // TURNS]
    messages = [Message(role="user", content=text)]
    calls: list[Mapping[str, Any]] = []
    for turn in range(TURNS // 2):
        messages += [Message(role="assistant", content=text), Message(role="tool", content=text)]
        calls.append({"turn": turn, "message": len(messages) - 1, "name": "search", "arguments": {}, "result": {}})
    rewards = (0.0,) * (TURNS // 2 - 1) + (1.0,)
    outcome = EpisodeResult(EpisodeStatus.FINISHED, 1.0, rewards, TURNS // 2, TURNS // 2, 0)
    return Trajectory(
        run="bench", phase="train", step=step, env="bench", split="train", index=number // 16, sample=number % 16,
        messages=messages, tool_calls=calls, outcome=outcome, started_at=0.0, elapsed_s=1.0, open_s=0.1,
        env_s=[0.1] * (TURNS // 2), tokens=Tokens(num_tokens // 2, num_tokens // 2, num_tokens // 2), tools="[]",
    )  # fmt: skip


if __name__ == "__main__":
    main()
