"""Graders on the main threads of their processes beside threads of one process, which cannot set signals.

    python -m tools.benchmarks.bench_graders [GRADER ...] [--at-once 32] [--calls 1600] [--rounds 3]

Each round grades the same answers in both ways, with `--at-once` calls at the same time. `start` is the first call, and
`further` another process. Threads are what xp.envs.rpc_server does for environments in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from xp.envs.base import ToolResult
from xp.envs.call_processes import CallProcesses
from xp.envs.child_process import ChildProcess
from xp.envs.config import EnvConfig
from xp.envs.graders import GraderHandler
from xp.envs.loop import run
from xp.envs.rpc_server import serve

PROGRAM = "tools.benchmarks.bench_graders"
LIMIT_S = 300.0
WAIT_S = 0.05
ROW = {"prompt": "What is 6 / 4?", "answer": "\\frac{3}{2}"}
ANSWER = "Six divided by four is " + "one and a half, which is " * 20 + "\\boxed{1.5}."


def equal(answer: str, row: Mapping[str, Any]) -> float:
    """A call that costs nothing."""
    return float(answer.endswith(str(row["answer"])))


def counts(answer: str, row: Mapping[str, Any]) -> float:
    """Some milliseconds of Python."""
    del row
    return float(sum(len(word) for word in answer.split() * 200) > 0)


def waits(answer: str, row: Mapping[str, Any]) -> float:
    """A request to another machine."""
    time.sleep(WAIT_S)
    return equal(answer, row)


async def waits_async(answer: str, row: Mapping[str, Any]) -> float:
    """A request to another machine, in an event loop."""
    await asyncio.sleep(WAIT_S)
    return equal(answer, row)


GRADERS = {
    "equal": f"{PROGRAM}:equal",
    "counts": f"{PROGRAM}:counts",
    "math": "xp.envs.builtin.math_verified:math",
    "waits": f"{PROGRAM}:waits",
    "waits_async": f"{PROGRAM}:waits_async",
}


class ThreadedHandler(GraderHandler):
    """The grader's side of calls in threads of one process."""

    def grade(self, number: int, given: Any) -> ToolResult:
        row, text = given
        grader = self._config.grader
        if grader is not None and grader.endswith("_async"):
            return ToolResult("", run(waits_async(text, row), LIMIT_S))
        return super().grade(number, given)


def main(argv: list[str] | None = None) -> None:
    """Print calls in a second in both ways, the median of the rounds, for each grader."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graders", nargs="*", default=list(GRADERS))
    for name, number in (("at-once", 32), ("calls", 1600), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args(argv or [])
    for name in given.graders:
        compare(name, config_of(GRADERS[name]), given)


def config_of(grader: str) -> EnvConfig:
    """The environment of a grader, with every other key at its default."""
    from xp.composition import compose
    from xp.planning.episode import episode_config

    rows = Path("outputs", "bench_rows.jsonl").absolute()
    rows.parent.mkdir(exist_ok=True)
    rows.write_text('{"prompt": "?", "answer": "1"}\n')
    words = ["env=graded", f"env.rows={rows}", f"env.grader={grader}"]
    (config,) = episode_config(compose(words)).members.values()
    return config


def compare(name: str, config: EnvConfig, given: argparse.Namespace) -> None:
    """Print the figures of one grader."""
    forked = CallProcesses(ChildProcess("xp.envs.graders", config, {}), LIMIT_S, "the grader")
    threaded = ChildProcess(PROGRAM, config, {})
    call = (ROW, ANSWER)

    def by_process() -> None:
        forked.call("grade", call, LIMIT_S, "the grader")

    def by_thread() -> None:
        threaded.child().ask("grade", threaded.number(), call, LIMIT_S, "the grader")

    try:
        starts = [seconds_of(function) for function in (by_thread, by_process)]
        further = seconds_of(lambda: forked.give(forked.take(is_new=True)))
        rates: dict[Callable[[], None], list[float]] = {by_thread: [], by_process: []}
        for _ in range(given.rounds):
            for function, found in rates.items():
                found.append(rate_of(function, given.at_once, given.calls))
    finally:
        forked.close()
        threaded.close()
    threads, processes = (median(found) for found in rates.values())
    print(
        f"{name}: threads {threads:.0f}/s, processes {processes:.0f}/s ({processes / threads:.2f});"
        f" start {starts[0]:.2f} s, {starts[1]:.2f} s; further {1000 * further:.0f} ms",
        flush=True,
    )


def seconds_of(function: Callable[[], Any]) -> float:
    """Seconds that a function takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def rate_of(function: Callable[[], None], at_once: int, calls: int) -> float:
    """Calls in a second."""
    with ThreadPoolExecutor(at_once) as pool:

        def all_calls() -> None:
            for one in [pool.submit(function) for _ in range(calls)]:
                one.result()

        return calls / seconds_of(all_calls)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal() and os.fstat(int(sys.argv[1])):
        serve(ThreadedHandler)
    else:
        main(sys.argv[1:])
