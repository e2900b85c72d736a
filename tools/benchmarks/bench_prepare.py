"""Preparation against a sequential loop over the SDK, the clock and the memory limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from tests.support.ors_server import rules
from tests.support.sections import replace
from xp.envs.base import Message, Task, ToolResult, ToolSpec
from xp.envs.config import EnvConfig
from xp.spec import Preparation
from xp.tasks.config import MemberConfig, PrepareConfig
from xp.tasks.prepare import prepare

NUM_TASKS = 200
LATENCY_S = 0.05
NUM_MANY_TASKS = 100_000
CONCURRENCY = 64
ENV = rules(
    name="bench",
    variant="benchenvironment",
    max_turns=1,
    max_sessions=CONCURRENCY,
    create_timeout_s=60.0,
    call_timeout_s=60.0,
    episode_timeout_s=60.0,
)

SERVER = """
import asyncio, os, socket
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
import uvicorn

class BenchEnvironment(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def num_tasks(cls, split): return 1_000_000
    @classmethod
    def get_task(cls, split, index): return {"question": index}
    @classmethod
    def list_tasks(cls, split): return [{"question": index} for index in range(%(num_tasks)d)]
    def get_prompt(self): return [TextBlock(text=f"Question {self.task_spec['question']}: " + "word " * 100)]
    @tool
    def submit(self) -> ToolOutput:
        "Hand in."
        return ToolOutput(blocks=[TextBlock(text="done")], reward=1.0, finished=True)

app = Server([BenchEnvironment]).app

async def slow(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.sleep(%(latency_s)f)
    await app(scope, receive, send)

listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
print(listener.getsockname()[1], flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the SDK logs every request there
uvicorn.Server(uvicorn.Config(slow, log_config=None, access_log=False)).run(sockets=[listener])
"""


@contextmanager
def serving() -> Iterator[str]:
    code = SERVER % {"latency_s": LATENCY_S, "num_tasks": NUM_TASKS}
    environ = {
        **os.environ,
        "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
        "OPENREWARD_LOG_LEVEL": "WARNING",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


def config_of(env: EnvConfig, num_tasks: int) -> PrepareConfig:
    changes = {
        "system_prompt": "Think.",
        "train": replace(env.train, num_tasks=num_tasks),
        "held_out": None,
    }
    preparation = Preparation(concurrency=CONCURRENCY, allow_missing_fraction=0.0)
    return PrepareConfig({"bench": MemberConfig(replace(env, **changes))}, preparation)


def seconds_of_prepare(url: str, num_tasks: int) -> float:
    """Everything from the empty store to the published set, in this process."""
    config = config_of(replace(ENV, target=url), num_tasks)
    with (
        tempfile.TemporaryDirectory() as root,
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        start = time.monotonic()
        prepare(config, os.environ, Path(root))
        return time.monotonic() - start


def seconds_of_sdk_loop(url: str, num_tasks: int) -> float:
    """The way of the public scripts: one session after the other."""
    from openreward import OpenReward

    client = OpenReward(api_key="none")
    environment = client.environments.get("benchenvironment", base_url=url)
    start = time.monotonic()
    for task in environment.list_tasks(split="train")[:num_tasks]:
        with environment.session(task=task) as session:
            session.get_prompt()
            session.list_tools()
    return time.monotonic() - start


class ManyTasks:
    """An index-based environment in memory, for the memory of preparation alone."""

    def __init__(self, config: EnvConfig, environ: Mapping[str, str]) -> None:
        self.name = config.name

    def version(self) -> str:
        return "1"

    def splits(self) -> tuple[str, ...]:
        return ("train",)

    def num_tasks(self, split: str) -> int:
        return NUM_MANY_TASKS

    def tasks(self, split: str, indices: Sequence[int]) -> list[Task]:
        return [Task(self.name, split, index, {"question": index}) for index in indices]

    def open(self, task: Task) -> ManySession:
        return ManySession(task)

    def close(self) -> None:
        pass


class ManySession:
    takes_answer = False

    def __init__(self, task: Task) -> None:
        self.task = task

    def prompt(self) -> list[Message]:
        return [
            Message(
                role="user",
                content=f"Question {self.task.index}: " + f"{self.task.index * 7919} word " * 200,
            )
        ]

    def tools(self) -> tuple[ToolSpec, ...]:
        return (ToolSpec("submit", "Hand in. " * 20, {"type": "object", "properties": {}}),)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        raise NotImplementedError

    def answer(self, text: str) -> ToolResult:
        raise NotImplementedError

    def close(self) -> None:
        pass


MEASURED = """
import json, resource, sys, time
start = time.monotonic()
from xp.tasks.prepare import main
status = main(sys.argv[1:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(json.dumps([status, time.monotonic() - start, peak]))
"""


def many_tasks(root: Path) -> None:
    config = config_of(
        replace(ENV, provider="tools.benchmarks.bench_prepare:ManyTasks"), NUM_MANY_TASKS
    )
    (root / "config.json").write_text(config.to_json())
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    code = [sys.executable, "-c", MEASURED, "config.json"]
    out = subprocess.run(
        code, cwd=root, env=environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    status, seconds, peak_gb = json.loads(out.splitlines()[-1])
    megabytes = sum(file.stat().st_size for file in root.rglob("tasks.parquet")) / 1e6
    print(
        f"{NUM_MANY_TASKS} index-based tasks: exit {status}, {seconds:.0f} s, peak {peak_gb:.2f} GB (bar: under 1 GB),"
        f" {megabytes:.0f} MB of Parquet"
    )
    cached = min(_seconds_of_stage(root, environ) for _ in range(5))
    print(f"the same set recognised by a whole process: {cached:.2f} s (bar: under 0.3 s)")


def _seconds_of_stage(root: Path, environ: Mapping[str, str]) -> float:
    start = time.monotonic()
    command = [sys.executable, "-m", "xp.tasks.prepare", "config.json"]
    subprocess.run(command, cwd=root, env=environ, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - start


def main() -> None:
    with serving() as url:
        seconds_of_prepare(url, 2)  # imports
        ours = min(seconds_of_prepare(url, NUM_TASKS) for _ in range(3))
        sequential = seconds_of_sdk_loop(url, NUM_TASKS)
    print(
        f"{NUM_TASKS} tasks, {LATENCY_S * 1000:.0f} ms a request: sequential SDK loop {sequential:.1f} s"
        f" ({NUM_TASKS / sequential:.1f}/s), prepare {ours:.2f} s ({NUM_TASKS / ours:.0f}/s):"
        f" {sequential / ours:.1f} times as fast (bar: 25)",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as root:
        many_tasks(Path(root))
