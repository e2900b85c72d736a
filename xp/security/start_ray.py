"""`ray ...` as a program that stays, and the time that Ray's own node has to come up.

Nodes run this file by its path, without xp on Python's: it imports nothing of xp.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

START_TIMEOUT_S: Final = 180.0
"""Seconds until a node of Ray must have registered. Ray 2.56 gives it 30 (a constant in `node.py`), which every start
exceeds on a machine with ten other processes on each core; one whose raylet aborts is told only after this time."""


@contextmanager
def patient() -> Iterator[None]:
    """Context in which ray.init and `ray start` wait START_TIMEOUT_S for their own node."""
    from ray._private import services

    once = services.get_node
    services.get_node = lambda *given, **named: until_known(lambda: once(*given, **named), START_TIMEOUT_S)
    try:
        yield
    finally:
        services.get_node = once


def until_known(node: Callable[[], T], timeout_s: float, pause_s: float = 0.5) -> T:
    """Call `node` until it raises no RuntimeError, by which Ray says that the node has not registered.

    Raises:
        RuntimeError: the last one, after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return node()
        except RuntimeError:
            if time.monotonic() > end:
                raise
        time.sleep(pause_s)


def main() -> None:
    """Run Ray's command line, then wait for a signal.

    `ray start --block` is not used: it ends everything when one of Ray's processes ends, even Ray Client's server,
    which fails on a busy machine.
    """
    from ray.scripts.scripts import cli

    with patient():
        cli(standalone_mode=False)
    signal.pause()


if __name__ == "__main__":
    main()
