"""Ten faults of many kinds over one run, at moments that the run itself tells: what the ordinary suite has of chaos."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from tests.chaos.clock import Clock
from tests.chaos.faults import counted, forgotten, killed, remote, replace_server
from tests.chaos.place import Place, ended
from tests.reliability import proxy as network
from tests.reliability.proxy import FaultProxy

DAY_S = 86_400.0


class Sample:
    """One run with an environment at a URL, each attempt of which meets some of the faults.

    Args:
        place: of the run.
        proxy: stands before the environment's server.
        clock: of the run's processes.
    """

    def __init__(self, place: Place, proxy: FaultProxy, clock: Clock) -> None:
        self.place = place
        self.said = []
        self._proxy = proxy
        self._clock = clock

    def play(self) -> int | None:
        """Play all of them and resume after each that ended an attempt; returns the exit code of the last attempt."""
        self._in_prepare(self.place.begin(**self._clock.environ))
        self._in_train(self._go_on())
        self._in_evaluate(self._go_on())
        return ended(self._go_on())

    def _in_prepare(self, process: psutil.Popen) -> None:
        self._break(
            "/create", network.status(502, executed=True), "answer to a creation lost in prepare"
        )
        assert _waited(process, lambda: len(self._proxy.requests("/create")) >= 6)
        self._kill("supervisor killed in prepare", [process])
        ended(process)

    def _in_train(self, process: psutil.Popen) -> None:
        self._jump(DAY_S)
        place = self.place
        attempt = self.place.next_attempt
        assert _waited(process, lambda: place.stage_began("train", attempt))
        self._break(
            "/create", network.reset(executed=True), "connection reset at a creation in train"
        )
        self._break("/messages", forgotten, "session expired in train")
        self._jump(-30 * DAY_S)
        assert _waited(process, lambda: self._checkpoint().exists())
        self._kill(
            "trainer killed after its first checkpoint",
            [one for one in place.processes() if _trains(one)],
        )
        assert ended(process) != 0

    def _in_evaluate(self, process: psutil.Popen) -> None:
        place = self.place
        attempt = self.place.next_attempt
        assert _waited(process, lambda: place.stage_began("train", attempt))
        self._break(
            "/create",
            network.status(503, {"Retry-After": "0"}),
            "503 at a creation in evaluate",
            skip=9,
        )
        assert _waited(process, lambda: place.stage_began("evaluate", attempt))
        self._hit("server replaced in evaluate")
        replace_server(self._proxy)
        run = place.run()
        assert run is not None
        written = run / f"attempt_{attempt}/evaluate/trajectories/after.jsonl"
        assert _waited(process, lambda: written.stat().st_size > 0)
        self._kill("all killed in evaluate", place.processes())
        ended(process)

    def _go_on(self) -> psutil.Popen:
        assert self.place.quiet()
        return self.place.go_on(**self._clock.environ)

    def _checkpoint(self) -> Path:
        """The file that is written last."""
        run = self.place.run()
        assert run is not None
        return run / "checkpoints/checkpoint-1/digests.json"

    def _hit(self, what: str) -> None:
        self.place.num_hits += 1
        self.said.append(what)

    def _break(self, path: str, fault: network.Fault, what: str, skip: int = 1) -> None:
        self._proxy.inject(
            path,
            counted(self.place, fault, what, self.said),
            skip=skip,
        )

    def _jump(self, by_s: float) -> None:
        self._clock.jump(by_s)
        self._hit(f"clock {by_s:+.0f} s")

    def _kill(self, what: str, processes: Sequence[psutil.Process]) -> None:
        assert killed(processes), f"{what}: nobody was there"
        self._hit(what)


def played(root: Path, spec: Sequence[str], name: str) -> tuple[Sample, int | None]:
    """The sample of a run by that name, which ran in `root`, and its exit code."""
    with remote(root, (*spec, f"name={name}")) as (place, proxy):
        place.name = name
        sample = Sample(place, proxy, Clock(root / "clock"))
        try:
            return sample, sample.play()
        finally:
            place.stop()


def _waited(process: psutil.Popen, condition: Callable[[], bool]) -> bool:
    """Whether it came true before the process ended."""
    while not condition():
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def _trains(process: psutil.Process) -> bool:
    try:
        return "xp.backends.trl.worker.train" in process.cmdline()
    except psutil.Error:
        return False
