"""Reserves this machine's GPUs for a user's runs; GPUs of an ended run are free at once."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xp.errors import ExitCode, XpError
from xp.hardware import visible_gpus
from xp.job import Stage

if TYPE_CHECKING:
    from filelock import FileLock


class Gpus:
    """GPUs that are reserved for this process during the object's lifetime."""

    def __init__(self, names: Sequence[str] = (), locks: Sequence[FileLock] = ()) -> None:
        self.names = tuple(names)
        self._locks = tuple(locks)

    def release(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks = ()


def claim_for(stages: Sequence[Stage]) -> Gpus:
    """Reserves the GPUs of the stage that needs most; raises XpError(RUNTIME) if there are fewer."""
    needs = max((stage.job.resources for stage in stages), key=lambda one: one.num_accelerators, default=None)
    if needs is None or not needs.num_accelerators or needs.accelerator == "cpu":
        return Gpus()
    return claim(needs.num_accelerators, needs.accelerator)


def claim(count: int, accelerator: str, directory: Path | None = None) -> Gpus:
    """Reserves `count` free GPUs; raises XpError(RUNTIME) if there are fewer."""
    from filelock import FileLock, Timeout

    there = visible_gpus()
    if len(there) < count:
        raise XpError(
            f"this run needs {count} x {accelerator} and this machine shows {len(there)} to nvidia-smi; the plan is"
            " fine: start it on a machine that has them, or choose a smaller hardware option",
            ExitCode.RUNTIME,
        )
    place = directory or Path(tempfile.gettempdir()) / f"xp-gpus-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    taken: list[tuple[str, FileLock]] = []
    for name in there:
        if len(taken) == count:
            break
        lock = FileLock(place / f"{re.sub('[^A-Za-z0-9-]', '_', name)}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        taken.append((name, lock))
    gpus = Gpus([name for name, _ in taken], [lock for _, lock in taken])
    if len(taken) < count:
        gpus.release()
        raise XpError(
            f"this run needs {count} x {accelerator} and {len(taken)} of {len(there)} are free: other runs of yours"
            " hold the rest; wait for them, or choose a smaller hardware option",
            ExitCode.RUNTIME,
        )
    return gpus
