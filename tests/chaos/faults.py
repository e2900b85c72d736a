"""Faults that reach a run from outside; each plays out over a first attempt and says what it did."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.chaos.place import STAGES, Place, ended
from tests.reliability import proxy as network
from tests.reliability.proxy import Fault, FaultProxy
from xp.envs.local_server import LocalServer

SERVE = "xp.builtin.whodunit_mini:WhodunitMini"
Wall = dict[str, float]
"""Stage -> seconds that it took in the undisturbed run."""
Play = Callable[[random.Random, Path, Wall], tuple[Place, str]]

CLOCK = """
import os, time
_at, _by = map(float, os.environ["XP_CHAOS_CLOCK"].split())
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + (_by if _time() > _at else 0.0)
time.time_ns = lambda: _time_ns() + (int(_by * 1e9) if _time() > _at else 0)
"""
"""A `sitecustomize` by which the wall clock of every Python process jumps at one moment."""


def _wait_until(place: Place, process: psutil.Popen, stage: str, delay_s: float, attempt: int = 1) -> bool:
    """Wait until a stage has begun and then as long as is said; False where the attempt ended before."""
    while not place.stage_began(stage, attempt):
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    with suppress(psutil.TimeoutExpired):
        process.wait(delay_s)
    return process.poll() is None


def _moment(draw: random.Random, wall: Wall) -> tuple[str, float]:
    """A stage, each as often as the others, and a moment of it."""
    stage = draw.choice(STAGES)
    return stage, draw.uniform(0, wall[stage])


def kill(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """SIGKILL for the supervisor, for one process of its tree, or for all; the environment is served by the run."""
    place, (stage, delay) = Place(root), _moment(draw, wall)
    process = place.begin()
    who = _strike(draw, place, process) if _wait_until(place, process, stage, delay) else "nobody"
    ended(process)
    return place, f"SIGKILL of {who}, {delay:.1f} s into {stage}"


def kills(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """The same, two to four times: for the first attempt and for those that resume it; the environment is at a URL."""
    said = []
    with _remote(root) as (place, _):
        for _ in range(draw.randint(2, 4)):
            stage = draw.choice(place.stages_left())
            delay = draw.uniform(0, wall[stage])
            process, attempt = place.go_on(), place.next_attempt
            if _wait_until(place, process, stage, delay, attempt):
                said.append(f"{_strike(draw, place, process)} {delay:.1f} s into {stage}")
            if ended(process) == 0 or not place.quiet():
                return place, f"SIGKILL of {', then of '.join(said) or 'nobody'}"
        _to_the_end(place, place.go_on())
    return place, f"SIGKILL of {', then of '.join(said) or 'nobody'}"


def _strike(draw: random.Random, place: Place, supervisor: psutil.Popen) -> str:
    """Kills by SIGKILL; returns who was meant."""
    who, number = draw.choice(("supervisor", "one", "all")), draw.random()
    tree = sorted(place.processes(), key=lambda one: one.pid)
    meant: dict[str, list[psutil.Process]] = {
        "supervisor": [psutil.Process(supervisor.pid)],
        "one": tree[int(number * len(tree)) :][:1],
        "all": tree,
    }
    is_hit = False
    for one in meant[who]:
        with suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)
            is_hit = True
    place.num_hits += is_hit
    return who


def clock(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """The wall clock jumps by up to a month, either way; then the supervisor is killed."""
    stage, delay = _moment(draw, wall)
    by = draw.choice((-1, 1)) * draw.choice((3_600, 86_400, 30 * 86_400))
    (root / "clock").mkdir(parents=True)
    (root / "clock/sitecustomize.py").write_text(CLOCK)
    at = time.time() + draw.uniform(0.1, 0.7) * sum(wall.values())
    place = Place(root)
    process = place.begin(PYTHONPATH=str(root / "clock"), XP_CHAOS_CLOCK=f"{at} {by}")
    if _wait_until(place, process, stage, delay):
        process.send_signal(signal.SIGKILL)
        place.num_hits += 1
    ended(process)
    return place, f"clock {by:+d} s; SIGKILL of supervisor, {delay:.1f} s into {stage}"


def disk(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """A file system that is full at some moment, and has room again when the run is resumed."""
    del wall
    root.mkdir(parents=True)
    size = draw.uniform(0.05, 0.95) * OUTPUT_MB
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 1024:.0f}k", "tmpfs", str(root)], check=True)
    place = Place(root)
    code = ended(place.begin())
    place.num_hits += code != 0
    subprocess.run(["mount", "-o", f"remount,size={8 * OUTPUT_MB}m", str(root)], check=True)
    return place, f"disk of {size:.1f} MB, exit {code}"


OUTPUT_MB = 24
"""About what the small run writes."""


def server_killed(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """The run's own environment server dies."""
    stage = draw.choice(("prepare", "train", "evaluate"))
    delay = draw.uniform(0.3, 1) * wall[stage]
    place = Place(root)
    process = place.begin()
    num_killed = 0
    if _wait_until(place, process, stage, delay):
        for one in place.processes():
            with suppress(psutil.Error):
                if "xp.envs.serve" in one.cmdline():
                    one.kill()
                    num_killed += 1
    code = ended(process)
    place.num_hits += num_killed > 0
    return place, f"{num_killed} environment servers killed {delay:.1f} s into {stage}, exit {code}"


_SERVERS: dict[str, LocalServer] = {}
_STARTING = threading.Lock()


def _server(name: str) -> LocalServer:
    """A server that runs as long as this process."""
    with _STARTING:
        if name not in _SERVERS:
            server = LocalServer(SERVE)
            server.start()
            _SERVERS[name] = server
    return _SERVERS[name]


@contextmanager
def _remote(root: Path) -> Iterator[tuple[Place, FaultProxy]]:
    """An environment at a URL, behind a proxy that breaks things."""
    root.mkdir(parents=True)
    with FaultProxy(_server("first")) as proxy:
        address = (f"env.target={proxy.url}", "env.serve=null", f"env.allowed_origins=[{proxy.url}]")
        limits = ("env.limits.call_timeout_s=5", "env.limits.create_timeout_s=20")
        yield Place(root, (*address, *limits), {"OPENREWARD_API_KEY": "any"}), proxy


def restart(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """The server at the run's URL is replaced by one that knows no session; connections are refused meanwhile."""
    stage, delay = draw.choice(("prepare", "train", "evaluate")), draw.uniform(0.3, 1)
    with _remote(root) as (place, proxy):
        process = place.begin()
        if _wait_until(place, process, stage, delay * wall[stage]):
            proxy.refuse_for(1.5)
            proxy.upstream = _server("second")
            place.num_hits += 1
        code = _to_the_end(place, process)
    return place, f"server restarted {delay:.0%} into {stage}, exit {code}"


def half_open(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """Connections that are there and on which nothing comes any more."""
    return _broken(draw, root, wall, "half-open TCP", network.stalled(network.HEAD), ("/call", "/create", "/messages"))


def expired(draw: random.Random, root: Path, wall: Wall) -> tuple[Place, str]:
    """Sessions that the server says it no longer knows."""
    return _broken(draw, root, wall, "session expired", network.status(404), ("/call",))


def _broken(
    draw: random.Random, root: Path, wall: Wall, what: str, fault: Fault, paths: tuple[str, ...]
) -> tuple[Place, str]:
    path, times = draw.choice(paths), draw.choice((1, 1, 2, 40))
    skip = draw.randrange(4 if path == "/call" else 12)  # An untrained model calls few tools.
    del wall
    with _remote(root) as (place, proxy):
        proxy.inject(path, fault, times=times, skip=skip)
        code = _to_the_end(place, place.begin())
        place.num_hits += len(proxy.requests(path)) > skip
    return place, f"{what}: {times} x {path} after {skip}, exit {code}"


def _to_the_end(place: Place, process: psutil.Popen) -> int | None:
    """The first attempt's exit code; the attempts after it need the same server, so they are played here."""
    code = first = ended(process)
    for _ in range(3):
        if code == 0:
            break
        code = ended(place.go_on())
    return first


def is_root() -> bool:
    return os.geteuid() == 0


FAULTS: dict[str, Play] = {
    "kill": kill,
    "kills": kills,
    "disk": disk,
    "server killed": server_killed,
    "server restarted": restart,
    "clock": clock,
    "half-open TCP": half_open,
    "session expired": expired,
}
KILLS = ("kill", "kills")
WEIGHTS = {
    "disk": 2,
    "server killed": 2,
    "server restarted": 2,
    "clock": 2,
    "half-open TCP": 1,
    "session expired": 1,
}
"""How often, beside the kills."""
