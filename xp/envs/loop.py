"""One event loop on one thread for a process's requests to environments, independent of the caller's loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from xp.envs.base import DeadlineExceeded

T = TypeVar("T")


class LoopThread:
    """An event loop that runs on a daemon thread until the process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._selector = selectors.DefaultSelector()
                self._loop = asyncio.SelectorEventLoop(self._selector)
                threading.Thread(target=self._loop.run_forever, name="xp-envs", daemon=True).start()
            return self._loop

    def forget(self) -> None:
        """Drops a forked child's copy of the parent's epoll, through which it could disturb the parent."""
        if self._selector is not None:
            self._selector.close()


_threads: dict[int, LoopThread] = {}
"""Threads by process id.

A forked child keeps its parent's entry, so that nothing of the parent is finalised in the child.
"""


def _after_fork_in_child() -> None:
    for thread in _threads.values():
        thread.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)


def current_loop() -> asyncio.AbstractEventLoop:
    """This process's loop, started at the first use."""
    return _threads.setdefault(os.getpid(), LoopThread()).loop()


def run(work: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Runs `work` on the process's loop and waits for its result.

    Args:
        work: coroutine with its own deadline.
        limit_s: further time limit in seconds, in case the loop is blocked.

    Raises:
        DeadlineExceeded: after `limit_s`.
    """
    future = asyncio.run_coroutine_threadsafe(work, current_loop())
    try:
        return future.result(limit_s)
    except concurrent.futures.TimeoutError:
        if future.done():
            raise
        future.cancel()
        raise DeadlineExceeded(f"no answer within {limit_s:g} s") from None
    except BaseException:
        future.cancel()
        raise
