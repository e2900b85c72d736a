"""One event loop on one thread for a process's requests to environments, independent of the caller's loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from xp.envs.base import DeadlineExceeded

T = TypeVar("T")


_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []
"""This process's loop; empty before its first use."""

# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=_loops.clear)


def current_loop() -> asyncio.AbstractEventLoop:
    """This process's loop, which runs on a daemon thread from its first use until the process ends."""
    with _lock:
        if not _loops:
            loop = asyncio.SelectorEventLoop()
            threading.Thread(target=loop.run_forever, name="xp-envs", daemon=True).start()
            _loops.append(loop)
        return _loops[0]


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
