"""Faults that reach a run from outside: each kind plays several of them over one run, and says what it did."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.chaos.clock import Clock
from tests.chaos.place import POLL_S, SMALL, STAGES, Place, ended
from tests.reliability import proxy as network
from tests.reliability.proxy import Exchange, Fault, FaultProxy
from xp.envs.local_server import LocalServer

SERVE = "xp.envs.builtin.whodunit_mini:WhodunitMini"
Work = dict[str, float]
"""Stage -> seconds of processor time in the undisturbed run."""
Play = Callable[[random.Random, Path, Work, int], tuple[Place, str]]
"""Draw, directory, the undisturbed run's work, number of faults; returns the run's place, and what was done."""
Act = Callable[[Place, psutil.Popen], str]
"""One fault; returns what it did, nothing where it met nobody."""
WITH_EPISODES = ("prepare", "train", "evaluate")
"""Stages that use the environment."""


def _moments(
    draw: random.Random, work: Work, number: int, stages: Sequence[str] = STAGES
) -> list[tuple[str, float]]:
    """Moments in their order, each stage as often as the others: a stage, and processor time since it began."""
    drawn = [draw.choice(stages) for _ in range(number)]
    return sorted(
        ((stage, draw.uniform(0, work[stage])) for stage in drawn),
        key=lambda one: (STAGES.index(one[0]), one[1]),
    )


def _reached(place: Place, process: psutil.Popen, moment: tuple[str, float]) -> bool:
    """Wait for a moment of the attempt that was started last; False where the attempt ended before."""
    stage, delay = moment
    while process.poll() is None:
        used = place.work_s(process, stage)
        if used is not None and used >= delay:
            return True
        time.sleep(POLL_S)
    return False


def _play(place: Place, moments: Sequence[tuple[str, float]], act: Act, **environ: str) -> str:
    """Act at each of the moments, resuming the run in between; ends with the run, or with a failure nobody caused."""
    done: list[str] = []
    process = place.begin(**environ)
    is_struck = False
    for moment in moments:
        while not _reached(place, process, moment):
            if ended(process) == 0 or not is_struck or not place.quiet():
                return "; ".join(done)
            process = place.go_on(**environ)
            is_struck = False
        what = act(place, process)
        if what:
            place.num_hits, is_struck = place.num_hits + 1, True
            done.append(f"{what} {moment[1]:.1f} s into {moment[0]}")
    _to_the_end(place, process, environ)
    return "; ".join(done)


def _to_the_end(
    place: Place, process: psutil.Popen, environ: Mapping[str, str], num_attempts: int = 3
) -> None:
    """Resume until the run has succeeded: what it needs, such as a server, may be gone later."""
    while ended(process) != 0 and num_attempts > 0 and place.quiet():
        process, num_attempts = place.go_on(**environ), num_attempts - 1


def kill(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """SIGKILL for the supervisor, for one process of its tree, or for all; the environment is served by the run."""
    place = Place(root)

    def strike(place: Place, process: psutil.Popen) -> str:
        who = draw.choice(("supervisor", "one", "all"))
        tree = sorted(place.processes(), key=lambda one: one.pid)
        meant = {
            "supervisor": [psutil.Process(process.pid)],
            "one": draw.sample(tree, min(1, len(tree))),
            "all": tree,
        }
        return f"{who} killed" if killed(meant[who]) else ""

    return place, _play(place, _moments(draw, work, number), strike)


def killed(processes: Sequence[psutil.Process]) -> int:
    number = 0
    for one in processes:
        with suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)
            number += 1
    return number


def clock(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """The wall clock jumps by up to a month, either way, while the run goes on; every second time it is killed too."""
    place = Place(root)
    wall = Clock(root / "clock")

    def strike(place: Place, process: psutil.Popen) -> str:
        del place
        by = draw.choice((-1, 1)) * draw.choice((3_600, 86_400, 30 * 86_400))
        wall.jump(by)
        is_killed = draw.random() < 0.5
        if is_killed:
            process.send_signal(signal.SIGKILL)
        return f"clock {by:+d} s{' and SIGKILL' if is_killed else ''}"

    moments = _moments(draw, work, number)
    return place, _play(place, moments, strike, **wall.environ)


def disk(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """A file system that is full at some moment, has more room when the run is resumed, and is full again."""
    del work
    root.mkdir(parents=True)
    sizes = sorted(draw.uniform(0.02, 0.95) * OUTPUT_MB for _ in range(number))
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={sizes[0] * 1024:.0f}k", "tmpfs", str(root)],
        check=True,
    )
    place = Place(root)
    said = []
    for size in [*sizes, 8 * OUTPUT_MB]:
        subprocess.run(["mount", "-o", f"remount,size={size * 1024:.0f}k", str(root)], check=True)
        code = ended(place.go_on())
        if code == 0 or size > OUTPUT_MB:
            break
        place.num_hits += 1
        said.append(f"{size:.1f} MB, exit {code}")
    return place, f"disk of {'; '.join(said)}"


OUTPUT_MB = 24
"""About what the small run writes."""


def server_killed(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """The run's own environment server dies."""
    place = Place(root)

    def strike(place: Place, process: psutil.Popen) -> str:
        while process.poll() is None:  # A stage's server is there for a part of the stage.
            if killed(_servers(place)):
                return "environment server killed"
            time.sleep(POLL_S)
        return ""

    return place, _play(place, _moments(draw, work, number, WITH_EPISODES), strike)


def _servers(place: Place) -> list[psutil.Process]:
    """Environment servers of the run's own."""
    found = []
    for one in place.processes():
        with suppress(psutil.Error):
            found += [one] if "xp.envs.serve" in one.cmdline() else []
    return found


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
def remote(root: Path, spec: Sequence[str] = SMALL) -> Iterator[tuple[Place, FaultProxy]]:
    """An environment at a URL, behind a proxy that breaks things."""
    with FaultProxy(_server("first")) as proxy:
        address = (
            f"env.target={proxy.url}",
            "env.serve=null",
            f"env.allowed_origins=[{proxy.url}]",
        )
        yield Place(root, (*spec, *address), {"OPENREWARD_API_KEY": "any"}), proxy


def replace_server(proxy: FaultProxy) -> None:
    """Replace the server by a new one without sessions at the same address; connections are refused meanwhile."""
    proxy.refuse_for(1.5)
    proxy.upstream = _server("second" if proxy.upstream is _server("first") else "first")


def restart(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """Replace the server at the run's URL by one without sessions; connections are refused meanwhile."""
    with remote(root) as (place, proxy):

        def strike(place: Place, process: psutil.Popen) -> str:
            del place, process
            replace_server(proxy)
            return "server replaced"

        return place, _play(place, _moments(draw, work, number, WITH_EPISODES), strike)


async def _stalled(exchange: Exchange) -> None:
    """The beginning of an answer, and then nothing on a connection that stays open."""
    await network.stalled(network.HEAD)(exchange)


async def forgotten(exchange: Exchange) -> None:
    """The real server forgets the session, as one does that is too old, and answers the call."""
    for path in ("/delete", "/delete_session"):
        ending = Exchange(
            "POST", path, exchange.headers, exchange.body, exchange.writer, exchange.upstream
        )
        await (await ending.execute()).read()
        assert ending.to_upstream is not None
        ending.to_upstream.close()
    await network.passed_on(exchange)


def half_open(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """Connections that are there and on which nothing comes any more."""
    del work
    return _broken(draw, root, "half-open TCP", _stalled, number)


def expired(draw: random.Random, root: Path, work: Work, number: int) -> tuple[Place, str]:
    """Fault: the server has dropped a session when the next call of its episode comes."""
    del work
    return _broken(draw, root, "session expired", forgotten, number, ("/call",))


REQUESTS = {"/call": 28, "/create": 20, "/messages": 20}
"""Path -> about how many requests the small run makes."""


def counted(place: Place, fault: Fault, what: str, said: list[str]) -> Fault:
    """The same fault, which counts itself and says what it was."""

    async def once(exchange: Exchange) -> None:
        place.num_hits += 1
        said.append(what)
        await fault(exchange)

    return once


def _broken(
    draw: random.Random,
    root: Path,
    what: str,
    fault: Fault,
    number: int,
    paths: Sequence[str] = tuple(REQUESTS),
) -> tuple[Place, str]:
    """Faults of single exchanges, at random places among all that the run makes."""
    said: list[str] = []
    with remote(root) as (place, proxy):
        for _ in range(number):
            path = draw.choice(paths)
            proxy.inject(
                path, counted(place, fault, path, said), skip=draw.randrange(REQUESTS[path])
            )
        _to_the_end(place, place.begin(), {}, 2 + number)
    return place, f"{what}: {', '.join(said) or 'nothing'}"


def is_root() -> bool:
    return os.geteuid() == 0


FAULTS: dict[str, Play] = {
    "kill": kill,
    "disk": disk,
    "server killed": server_killed,
    "server restarted": restart,
    "clock": clock,
    "half-open TCP": half_open,
    "session expired": expired,
}
PER_RUN = {
    "kill": 10,
    "disk": 5,
    "server killed": 5,
    "server restarted": 6,
    "clock": 5,
    "half-open TCP": 8,
    "session expired": 10,
}
"""Faults of one run; those that cost no attempt are more."""
