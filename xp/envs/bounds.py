"""Limits of a process that runs what others wrote (an environment, a grader, a chat template)."""

from __future__ import annotations

import sys
from typing import Final

USUAL_STACK: Final = 8 * 2**20
"""Bytes of a thread's stack; where `ulimit -s` is unlimited, glibc takes less."""


def bound_memory(memory_gb: float | None) -> None:
    """Limits the private memory of this process and of each child process, in GB; larger allocations fail.

    In Python, an allocation then raises MemoryError. Mapped files and libraries do not count.
    """
    if memory_gb is not None and sys.platform == "linux":
        import resource

        wanted = int(memory_gb * 1e9)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def stacks_within(memory_gb: float) -> int:
    """Returns how many threads' stacks `memory_gb` has room for, at least one.

    A whole stack counts for `bound_memory` (`ulimit -s`, 8 MB as a rule), however little of it is used.
    """
    size = USUAL_STACK
    if sys.platform == "linux":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
        size = USUAL_STACK if soft == resource.RLIM_INFINITY else soft
    return max(1, int(memory_gb * 1e9 / size))
