"""Requests a second of `xp eval` and of 64 plain connections to an endpoint: `python -m tools.benchmarks.bench_eval`.

The endpoint is the tests' stub: it takes any number of requests at the same time and answers each after a fixed
time. Both clients are processes of their own, one after the other, several times; the endpoint notes when the first
request came and when the last was answered.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.stubs.chat_server import ChatServer, Reply, serving

CONCURRENCY = 64
BODY = {
    "model": "stub",
    "messages": [{"role": "user", "content": "What is 12 times 34?"}],
    "max_tokens": 16,
}


class Timed(ChatServer):
    """Records the times of each request and of its answer."""

    def __init__(self, latency_s: float) -> None:
        super().__init__(latency_s=latency_s)
        self.begun: list[float] = []
        self.ended: list[float] = []

    def answer(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        self.begun.append(time.monotonic())
        reply = super().answer(body, headers)
        self.ended.append(time.monotonic())
        return reply

    def rate(self) -> float:
        """Requests a second since the last call."""
        found = len(self.ended) / (max(self.ended) - min(self.begun))
        self.begun = []
        self.ended = []
        self.most_in_flight = 0
        self.requests.clear()
        self.headers.clear()
        return found


def main(words: list[str] | None = None) -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10 * CONCURRENCY)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of one answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--plain", metavar="URL", help="only ask this endpoint (what the benchmark starts)"
    )
    asked = parser.parse_args([] if words is None else words)
    if asked.plain:
        plain(asked.plain, asked.episodes)
        return
    server = Timed(asked.latency)
    rates: dict[str, list[float]] = {"plain connections": [], "xp eval": []}
    with serving(server), tempfile.TemporaryDirectory() as outputs:
        commands = {
            "plain connections": [
                "tools.benchmarks.bench_eval",
                "--plain",
                server.url,
                "--episodes",
                str(asked.episodes),
            ],
            "xp eval": ["xp", "eval", *_words(server.url, Path(outputs), asked.episodes)],
        }
        for _ in range(asked.rounds):
            for name, command in commands.items():
                subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
                assert server.most_in_flight <= CONCURRENCY
                rates[name].append(server.rate())
    best = CONCURRENCY / asked.latency
    for name, found in rates.items():
        print(
            f"  {name:<18} {statistics.median(found):6.1f} requests/s of at most {best:.0f} ({_spread(found)})"
        )
    ratios = [
        own / raw for own, raw in zip(rates["xp eval"], rates["plain connections"], strict=True)
    ]
    print(f"  ratio              {statistics.median(ratios):6.3f} ({_spread(ratios)}; bar 0.9)")


def plain(url: str, num_requests: int) -> None:
    """The endpoint's own throughput: each of 64 connections asks again as soon as it has its answer."""
    body = json.dumps(BODY).encode()

    def work() -> None:
        connection = http.client.HTTPConnection(urlsplit(url).netloc)
        for _ in range(num_requests // CONCURRENCY):
            connection.request(
                "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
            )
            connection.getresponse().read()

    threads = [threading.Thread(target=work) for _ in range(CONCURRENCY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _words(url: str, outputs: Path, num_episodes: int) -> list[str]:
    endpoint = [
        "model=endpoint",
        f"model.url={url}",
        "model.name=stub",
        f"eval.concurrency={CONCURRENCY}",
    ]
    tasks = [
        "env=multiply",
        "env.train.num_tasks=1",
        "env.held_out.num_tasks=64",
        f"outputs={outputs}",
    ]
    return [*tasks, *endpoint, f"evaluation.samples_per_task={num_episodes // 64}", "--again"]


def _spread(values: list[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g} in {len(values)} rounds"


if __name__ == "__main__":
    main(sys.argv[1:])
