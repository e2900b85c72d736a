"""CPU and throughput of the Episode, its session and the SDK's own: `python -m tools.benchmarks.bench_session`."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

from tests.support.fake_session import RULES, call
from tests.support.ors_server import COUNTER, rules
from tests.support.sections import replace
from tools.benchmarks import Clock, Rate
from xp.envs.base import Task
from xp.envs.local_server import LocalServer
from xp.envs.openreward import OpenRewardProvider
from xp.episode.episode import Episode

TASK = Task("bench", "train", 0)
CALL = {"name": "say", "input": {"value": "x" * 200}}
SLEEP = {"name": "sleep", "input": {"amount": 0.05}}


class Place:
    """A running server, with its address and key for a client."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self.key = key

    def provider(self, **limits: Any) -> OpenRewardProvider:
        environ = {**os.environ, "OPENREWARD_API_KEY": self.key}
        return OpenRewardProvider(
            rules(target=self.url, allowed_origins=(self.url,), variant="counter", **limits),
            environ,
        )

    def headers(self, sid: str) -> dict[str, str]:
        return {"X-API-Key": self.key, "X-Session-ID": sid, "Content-Type": "application/json"}


def cpu_per_turn(place: Place, turns: int) -> dict[str, float]:
    """CPU of this process per turn, in ms, for three clients that take turns against one server."""
    provider = place.provider(call_timeout_s=60.0, episode_timeout_s=3600.0)
    session = provider.open(TASK)
    episode = Episode(TASK, lambda: provider.open(TASK), replace(RULES, max_turns=10**9))
    connection = http.client.HTTPConnection(urlsplit(place.url).netloc)
    body = json.dumps(CALL)
    headers = place.headers(session._live.sid)
    text = call("say", value="x" * 200)

    def raw() -> None:
        connection.request("POST", "/counter/call", body, headers)
        connection.getresponse().read()

    clients: dict[str, Callable[[], object]] = {
        "raw http.client": raw,
        "session.call": lambda: session.call("say", CALL["input"]),  # type: ignore[arg-type]
        "episode.step": lambda: episode.step(text),
    }
    found: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(6):
        for name, client in clients.items():
            client()
            began = time.process_time()
            for _ in range(turns // 6):
                client()
            found[name].append((time.process_time() - began) / (turns // 6) * 1e3)
    provider.close()
    return {name: min(times) for name, times in found.items()}


def threads_per_second(sessions: int, seconds: float, place: Place) -> Rate:
    """Calls a second through our sessions, one thread each."""
    provider = place.provider(max_sessions=sessions, call_timeout_s=60.0, create_timeout_s=120.0)
    opened: list[Any] = [None] * sessions

    def open_one(number: int) -> None:
        opened[number] = provider.open(TASK)

    _in_threads(open_one, sessions)
    counts = [0] * sessions
    until = time.monotonic() + seconds

    def play(number: int) -> None:
        while time.monotonic() < until:
            opened[number].call("sleep", SLEEP["input"])
            counts[number] += 1

    clock = Clock()
    _in_threads(play, sessions)
    rate = clock.rate(sum(counts))
    provider.close()
    return rate


def _in_threads(work: Callable[[int], None], number: int) -> None:
    threads = [threading.Thread(target=work, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ceiling(sessions: int, seconds: float, place: Place) -> Rate:
    return asyncio.run(_ceiling(sessions, seconds, place))


async def _ceiling(sessions: int, seconds: float, place: Place) -> Rate:
    """Calls a second of the leanest client there is: prepared bytes on raw sockets, nothing read but the end."""
    provider = place.provider(max_sessions=sessions, create_timeout_s=120.0)
    opened = await asyncio.gather(
        *(asyncio.to_thread(provider.open, TASK) for _ in range(sessions))
    )
    body = json.dumps(SLEEP).encode()
    host = urlsplit(place.url).hostname
    port = urlsplit(place.url).port
    until = time.monotonic() + seconds
    total = 0

    async def play(sid: str) -> None:
        nonlocal total
        reader, writer = await asyncio.open_connection(host, port)
        head = {**place.headers(sid), "Host": f"{host}:{port}", "Content-Length": str(len(body))}
        lines = [
            "POST /counter/call HTTP/1.1",
            *(f"{name}: {value}" for name, value in head.items()),
            "",
            "",
        ]
        request = "\r\n".join(lines).encode() + body
        while time.monotonic() < until:
            writer.write(request)
            await reader.readuntil(b"\r\n0\r\n\r\n")
            total += 1
        writer.close()

    clock = Clock()
    await asyncio.gather(*(play(session._live.sid) for session in opened))
    rate = clock.rate(total)
    await asyncio.to_thread(provider.close)
    return rate


def sdk_cpu(turns: int, place: Place) -> Rate:
    """CPU per call of the SDK's blocking session, in ms."""
    from openreward import OpenReward

    os.environ["OPENREWARD_SESSION_URL"] = place.url
    client = OpenReward(api_key=place.key)
    with client.environments.get("counter", variant="counter").session(
        split="train", index=0
    ) as session:
        session.call_tool("say", CALL["input"])
        clock = Clock()
        for _ in range(turns):
            session.call_tool("say", CALL["input"])
        rate = clock.rate(turns)
    client.close()
    return rate


def _apart(work: Callable[[Place], Rate], place: Place) -> Rate:
    """Run in a process of its own, so that no client pays for another's threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (place,))


def main(argv: Sequence[str] = ()) -> None:
    """Print milliseconds of CPU per turn, and throughput against the leanest client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=1200)
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    with LocalServer(COUNTER) as server:
        place = Place(server.url, server.key)
        times = cpu_per_turn(place, options.turns)
        times["SDK session.call_tool"] = (
            1e3 / _apart(partial(sdk_cpu, options.turns // 3), place).per_cpu_second
        )
        for name, spent in times.items():
            print(
                f"{name:24s} {spent:7.3f} ms CPU per turn, {spent - times['raw http.client']:+.3f} over raw",
                flush=True,
            )
        print(f"{options.sessions} sessions at once, each call takes the server 50 ms:")
        rates: dict[str, list[float]] = {"ceiling": [], "ours": []}
        for _ in range(options.rounds):
            for name, kind in (("ceiling", ceiling), ("ours", threads_per_second)):
                rate = _apart(partial(kind, options.sessions, options.seconds), place)
                rates[name].append(rate.per_second)
                cpu_ms = 1e3 / rate.per_cpu_second
                print(
                    f"  {name:8s} {rate.per_second:6.0f} calls/s, {cpu_ms:.2f} ms CPU of the client per call",
                    flush=True,
                )
    middle = {name: statistics.median(found) for name, found in rates.items()}
    print(f"ours / ceiling {middle['ours'] / middle['ceiling']:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
