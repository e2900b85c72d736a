"""Slots of an environment's server: sessions that it holds idle, and how many it opens at once before it slows."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from xp.envs.base import EnvFault, Provider, Session, Task
from xp.envs.config import EnvConfig
from xp.lib.text import counted
from xp.spec.env import EnvLimits

NUM_SLOTS: Final = 64
"""Largest number of sessions that are opened without another request of the user."""
DEADLINE_S: Final = 20.0
"""Seconds until an opening counts as refused."""
ENOUGH: Final = 0.8
"""Share of the largest rate that is as good: fewer openings at once are better then."""


@dataclass(frozen=True)
class Slots:
    """Result of a measurement."""

    num_idle: int
    """Sessions that were open at the same time and answered."""
    at_once: int
    """Openings at once, beyond which the server opens hardly more in a second."""
    per_s: float
    """Sessions opened in a second at this rate."""
    fault: str | None
    """Reason why no more sessions were opened. None means that the measurement was complete."""

    def __str__(self) -> str:
        more = f"; no more: {self.fault}" if self.fault else ", the largest number that was tried"
        if not self.num_idle:
            return f"no session{more}"
        keys = f"preparation.concurrency={self.at_once} env.limits.max_sessions={self.num_idle}"
        rate = f"{counted(self.at_once, 'opening')} at once are enough ({self.per_s:.3g} sessions a second)"
        return f"{counted(self.num_idle, 'idle session')} at the same time{more}; {rate}: {keys}"


def slot_limits(limits: EnvLimits, num_slots: int) -> EnvLimits:
    """Limits of a provider for a measurement."""
    seconds = min(limits.create_timeout_s, DEADLINE_S)
    changes = {"create_timeout_s": seconds, "episode_timeout_s": seconds, "max_sessions": num_slots}
    return limits.model_copy(update=changes)


def num_slots_of(env: EnvConfig, requested: int | None) -> int | None:
    """Number of sessions to try. None means that nothing is measured. A server that the run does not start is
    another's, so it is measured by request only."""
    if requested is not None:
        if (env.target or env.serve or env.image) is not None:
            return requested
        return None
    if env.serve is not None or env.image is not None:
        return min(NUM_SLOTS, env.limits.max_sessions)
    return None


def measure_slots(
    provider: Provider, task: Task, num_slots: int, is_over: Callable[[], bool] = lambda: False
) -> Slots:
    """Opens sessions on a task in growing waves and holds them; the sessions are closed at the end.

    Args:
        provider: the environment, with `slot_limits`.
        num_slots: number of sessions after which it ends.
        is_over: whether the time is over, asked before each wave.
    """
    sessions: list[Session] = []
    faults: list[EnvFault] = []

    def open_one(_: int) -> None:
        try:
            sessions.append(provider.open(task))
        except EnvFault as fault:
            faults.append(fault)

    open_one(0)  # may start the server
    wave = 1
    rates = {1: 0.0}
    try:
        with ThreadPoolExecutor(num_slots) as pool:
            while not faults and len(sessions) < num_slots and not is_over():
                size = min(wave, num_slots - len(sessions))
                before = len(sessions)
                began = time.monotonic()
                list(pool.map(open_one, range(size)))
                if not faults:
                    rates[size] = max(
                        rates.get(size, 0.0), (len(sessions) - before) / (time.monotonic() - began)
                    )
                wave *= 2
            num_idle = sum(pool.map(_answers, sessions))
    finally:
        for session in sessions:
            session.close()
    reason = None
    if faults:
        reason = f"{type(faults[0]).__name__}: {faults[0]}"
    elif num_idle < len(sessions):
        reason = f"{len(sessions) - num_idle} of {len(sessions)} idle sessions were lost"
    at_once = min(size for size, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
    return Slots(num_idle, at_once, rates[at_once], reason)


def _answers(session: Session) -> bool:
    with suppress(EnvFault):
        session.tools()
        return True
    return False
