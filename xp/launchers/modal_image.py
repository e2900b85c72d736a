"""A stage's image on Modal: the locked packages in layers of their own, which hold nothing of a run and so are kept."""

from __future__ import annotations

from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.job import Job
from xp.runtime_locks import AFTER_LOCK, RuntimeLock, added_to_image, lock_with, smallest_with
from xp.spec.place import LauncherSpec

PYTHON = "3.12"
"""Python version of images that are made from a lock."""
LOCKED = "--require-hashes --no-deps"
BY_ADDRESS = "--no-deps"
"""A wheel's address ends in its hash."""


def lock_of(job: Job) -> RuntimeLock | None:
    """Lock that the stage's Python is made from; None if the spec names an image that holds it.

    Raises:
        XpError: PLAN where no lock holds what the job imports.
    """
    if job.runtime.image is not None:
        return None
    key = job.runtime.lock
    lock = smallest_with(job.runtime.packages) if key is None else lock_with(key)
    if lock is None:
        raise XpError(
            f"no lock of xp's holds {', '.join(job.runtime.packages)}; name an image that does:"
            " backend.runtime.image=...",
            ExitCode.PLAN,
        )
    return lock


def image_text(job: Job, spec: LauncherSpec, locks: Path) -> str:
    """The image as an expression of Modal's.

    Args:
        job: the stage's.
        spec: the launcher's.
        locks: directory that holds a copy of the lock's files.
    """
    lock = lock_of(job)
    if lock is None:
        return _given(job)
    if job.resources.num_accelerators:
        base = f"modal.Image.from_registry({spec.base_image!a}, add_python={PYTHON!a})"
    else:
        base = f"modal.Image.debian_slim(python_version={PYTHON!a})"
    layers = [
        f".uv_pip_install(requirements=[{str(locks / file.name)!a}],"
        f" extra_options={BY_ADDRESS if file.name == AFTER_LOCK else LOCKED!a})"
        for file in lock.files
    ]
    return "\n    ".join([base, *layers])


def _given(job: Job) -> str:
    """An image that has the trainer; where that comes as checkouts, xp's own needs are added."""
    runtime = job.runtime
    layers = [f"modal.Image.from_registry({runtime.image!a})"]
    if runtime.project is not None:
        layers.append(f".pip_install({', '.join(map(ascii, added_to_image()))})")
        layers.append(f".env({dict(runtime.image_checkouts)!a})")
    return "\n    ".join(layers)
