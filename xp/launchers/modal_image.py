"""A stage's image on Modal: locked packages are in separate layers, which are independent of runs and so are cached."""

from __future__ import annotations

from pathlib import Path

from xp.job import Job
from xp.launchers.service import lock_of
from xp.runtimes import AFTER_LOCK, added_to_image
from xp.spec.place import LauncherSpec

PYTHON = "3.12"
"""Python version of images that are made from a lock."""
LOCKED = "--require-hashes --no-deps"
BY_ADDRESS = "--no-deps"
"""Option for wheels by URL; the URL ends with the wheel's hash."""


def image_text(job: Job, spec: LauncherSpec, locks: Path) -> str:
    """The image as a Python expression of Modal's API.

    Args:
        job: the stage's job.
        spec: the launcher's section.
        locks: directory with a copy of the lock's files.
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
    """Expression of an image with the trainer; for a trainer in checkouts, with xp's requirements added."""
    runtime = job.runtime
    layers = [f"modal.Image.from_registry({runtime.image!a})"]
    if runtime.project is not None:
        layers.append(f".pip_install({', '.join(map(ascii, added_to_image()))})")
        layers.append(f".env({dict(runtime.image_checkouts)!a})")
    return "\n    ".join(layers)
