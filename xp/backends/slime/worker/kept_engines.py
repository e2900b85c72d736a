"""Watches and counts engines that Slime restarts when they die or hang (--use-fault-tolerance).

Slime takes a lost engine off its router while a rollout goes on, and starts it again before the next weights are sent
(slime/ray/rollout.py, recover_updatable_engines). Here are three things that it lacks: a check right before engines are
asked to free memory or to take weights, a deadline for what they are asked, and an end for an engine that is lost again
and again.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from xp.errors import ExitCode, XpError
from xp.security.after_import import after_import

MONITOR: Final = "slime.utils.health_monitor"
ENGINE: Final = "slime.backends.sglang_utils.sglang_engine"
MAX_RESTARTS: Final = 3
"""Largest number of restarts of one engine in one stage; a more frequent fault would end the next engine too."""
TRANSFER_S: Final = 1800.0
"""Time limit in seconds of one request to load weights, to free memory or to restore it."""
ANSWER_S: Final = 30.0
"""Time limit in seconds of any other request to an engine; Slime repeats some of them sixty times."""

_watches: list[Any] = []
"""Slime's monitors of this process: one for each group of engines."""


def prepare() -> None:
    """Set up a process of Slime's, before it imports Slime; the watch is in the rollout's process only."""
    after_import(MONITOR, _watch_better)
    after_import(ENGINE, _set_deadlines)


def restarts() -> int:
    """Number of engines restarted since the last call."""
    return sum(watch.take_restarts() for watch in _watches)


def check_restarts() -> None:
    """Raise XpError(ENGINE) if one engine was lost more than MAX_RESTARTS times."""
    for watch in _watches:
        for number, times in watch.num_lost.items():
            if times > MAX_RESTARTS:
                raise XpError(
                    f"engine {number} was lost {times} times in this stage (after {MAX_RESTARTS} restarts); SGLang's"
                    " output in the stage's log says why it ended",
                    ExitCode.ENGINE,
                )


def check_lost(num_lost: int, num_episodes: int, max_void_fraction: float) -> None:
    """Raise XpError(ENGINE) if more episodes lost their engine than may be void: no engine is left, or too few."""
    if num_lost > max_void_fraction * num_episodes:
        raise XpError(
            f"{num_lost} of {num_episodes} episodes found no engine, more than"
            f" training.max_void_fraction={max_void_fraction}; Slime starts an engine again only between two rollout"
            " steps. resume=RUN goes on from the last checkpoint, and launcher.max_restarts=N does so by itself; with"
            " several engines (backend.engine.tensor_parallel) the others take the episodes of one that is lost",
            ExitCode.ENGINE,
        )


def _watch_better(module: ModuleType) -> None:
    """Slime's rollout process imports the class from this module."""
    if not getattr(module.RolloutHealthMonitor, "is_xps", False):
        module.RolloutHealthMonitor = _kept(module.RolloutHealthMonitor)  # type: ignore[attr-defined]


def _kept(base: Any) -> Any:
    return type(base.__name__, (KeptEngines, base), {})


class KeptEngines:
    """Extends Slime's monitor of a group of engines: counts losses, and checks engines before requests of the training.

    Args:
        server_group: Slime's ServerGroup.
        args: Slime's.
    """

    is_xps = True
    _server_group: Any
    _check_timeout: float
    is_checking_enabled: Callable[[], bool]
    _kill_engine: Callable[..., None]

    def __init__(self, server_group: Any, args: Any) -> None:
        super().__init__(server_group, args)  # type: ignore[call-arg]
        self.num_lost: Counter[int] = Counter()
        """Number of losses of each engine, by its number in the group."""
        self._gone: set[int] = set()
        self._num_restarts = 0
        self._checking = threading.Lock()
        _watches.append(self)

    def pause(self) -> None:
        """Check the engines first: Slime pauses before requests to load weights, where a lost one ends the run."""
        with self._checking:
            if self.is_checking_enabled():
                self._check_all()
            super().pause()  # type: ignore[misc]

    def resume(self) -> None:
        back = {number for number in self._gone if self._server_group.engines[number] is not None}
        self._gone -= back
        self._num_restarts += len(back)
        super().resume()  # type: ignore[misc]

    def take_restarts(self) -> int:
        number, self._num_restarts = self._num_restarts, 0
        return number

    def _run_health_checks(self) -> None:
        """Called repeatedly by Slime's thread."""
        with self._checking:
            if self.is_checking_enabled():
                self._check_all()

    def _check_all(self) -> None:
        """Check all engines at the same time: each takes at least a second to answer."""
        import ray

        asked = [
            (number, engine.health_generate.remote(timeout=self._check_timeout))
            for number, engine in enumerate(self._server_group.engines)
            if engine is not None
        ]
        for number, answer in asked:
            try:
                ray.get(answer)
            except Exception as fault:
                self._lose(number, fault)

    def _lose(self, number: int, fault: Exception) -> None:
        self.num_lost[number] += 1
        self._gone.add(number)
        self._kill_engine(rollout_engine_id=number)
        why = (str(fault).strip().splitlines() or [type(fault).__name__])[-1]
        print(
            f"xp: warning: engine {number} did not answer and was ended ({why}); Slime starts it again before the"
            f" next weights are sent; loss {self.num_lost[number]}, restarts at most {MAX_RESTARTS}",
            file=sys.stderr,
            flush=True,
        )


def _set_deadlines(module: ModuleType) -> None:
    """Add deadlines to the requests from Slime's engine to its server; without them callers could wait for ever."""
    if not getattr(module, "xp_has_deadlines", False):
        requests = module.requests
        limits = {"get": ANSWER_S, "post": TRANSFER_S, "delete": ANSWER_S}
        with_limit = {name: partial(getattr(requests, name), timeout=limit_s) for name, limit_s in limits.items()}
        module.requests = SimpleNamespace(**{**vars(requests), **with_limit})  # type: ignore[attr-defined]
        module.xp_has_deadlines = True  # type: ignore[attr-defined]
