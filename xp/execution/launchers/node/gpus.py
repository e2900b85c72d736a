"""Reserves this machine's GPUs for a user's runs; GPUs of an ended run are free at once."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from xp.errors import ExitCode, XpError
from xp.planning.job import Resources
from xp.spec.hardware import visible_gpus

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


def claim(resources: Sequence[Resources], directory: Path | None = None) -> Gpus:
    """Reserves the GPUs of the job that needs most, in `directory`; raises XpError(RUNTIME) if there are fewer."""
    from filelock import FileLock, Timeout

    needs = max(resources, key=lambda resource: resource.num_accelerators, default=None)
    if needs is None or not needs.num_accelerators:
        return Gpus()
    folder = directory or Path(tempfile.gettempdir()) / f"xp-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    there = visible_gpus()
    count = needs.num_accelerators
    locks: list[tuple[str, FileLock]] = []
    for name in there:
        lock = FileLock(folder / f"{re.sub('[^A-Za-z0-9-]', '_', name)}.lock")
        with suppress(Timeout):
            lock.acquire(timeout=0)
            locks.append((name, lock))
        if len(locks) == count:
            return Gpus([name for name, _ in locks], [lock for _, lock in locks])
    Gpus(locks=[lock for _, lock in locks]).release()
    if len(there) >= count:
        fix = "wait for your other runs"
    else:
        fix = "start it on a machine that has them"
    raise XpError(
        f"this run needs {count} x {needs.accelerator}, and {len(locks)} of the {len(there)} that nvidia-smi shows here"
        f" are free; the plan is fine: {fix}, or choose a smaller hardware option",
        ExitCode.RUNTIME,
    )
