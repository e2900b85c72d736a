"""Named points at which a test can kill the prepare stage, raise an exception, or simulate a full disk.

`XP_FAULT=prepare:<point>:<kill|stop|raise|enospc>[:<n>]` acts at the n-th visit of the point (default: the first);
without the variable nothing happens. The points are the members of `FaultPoint`.
"""

from __future__ import annotations

import errno
import os
import signal
from collections import Counter
from enum import StrEnum


class FaultPoint(StrEnum):
    """Points at which a fault can be injected, in the order of a run."""

    START = "start"
    LOCKED = "locked"
    PLANNED = "planned"
    TASK = "task"
    """After each task, before its shard is written."""
    SHARD_TEMPORARY = "shard-temporary"
    """A shard's bytes are written, but not under its final name."""
    SHARD = "shard"
    MERGE = "merge"
    """The table is half written."""
    BEFORE_COMMIT = "before-commit"
    """Table and manifest are complete in the work directory."""
    COMMITTED = "committed"
    """The set is published, the work directory is not yet removed."""


class InjectedFault(Exception):
    """Simulated bug."""


_passed: Counter[FaultPoint] = Counter()


def fault_point(point: FaultPoint) -> None:
    wanted = os.environ.get("XP_FAULT")
    if not wanted:
        return
    stage, name, action, nth = [*wanted.split(":"), "1"][:4]
    if stage != "prepare" or name != point:
        return
    _passed[point] += 1
    if _passed[point] != int(nth):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
        return
    if action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise InjectedFault(f"XP_FAULT at {point}")
