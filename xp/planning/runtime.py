"""The Python that a trainer's stages run in: its lock, its checkouts, and the command that installs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from xp.fields.shared import is_megatron, is_on_cpu
from xp.planning.job import Runtime
from xp.planning.runtimes import Checkouts, RuntimeLock, checkouts_of, installed, locks
from xp.spec import Attention, BackendName, RunSpec


def runtime_lock(spec: RunSpec) -> RuntimeLock | None:
    """Lock of the trainer's Python; None if the spec names a Python, or the job runs in xp's own."""
    runtime = spec.backend.runtime
    # Of a plug-in's backend xp's own Python has not the packages, with or without accelerators.
    is_in_xps = is_on_cpu(spec) and spec.backend.name in list(BackendName)
    if runtime.python is not None or runtime.project_env is not None or is_in_xps:
        return None
    if is_megatron(spec):  # SkyRL's Megatron and Slime come from checkouts or images
        return None
    lock = locks().get(spec.backend.name)
    return lock and replace(lock, has_flash=spec.backend.attention is Attention.FLASH)


def trainer_python(spec: RunSpec) -> str | None:
    """The interpreter of the trainer, if it is installed on this machine. None means that xp's own is the best guess."""
    named = spec.backend.runtime.python
    if named is not None:
        return named if Path(named).is_file() else None
    lock = runtime_lock(spec)
    python = None if lock is None else installed(lock.key)
    return None if python is None else str(python)


def runtime_checkouts(spec: RunSpec) -> Checkouts | None:
    """Checkouts of the trainer; None if it is installed as packages."""
    return checkouts_of(spec.backend.commits, spec.backend.runtime.project_env)


def trainer_runtime(spec: RunSpec, packages: Sequence[str], install: str | None = None) -> Runtime:
    """The trainer's Python; `install`: command that makes one, if not pip with the packages' names."""
    runtime = spec.backend.runtime
    lock = runtime_lock(spec)
    sources = runtime_checkouts(spec)
    if install is None and sources is not None:
        install = f"python -m xp install backend={sources.name} hardware={spec.hardware.name}"
    if install is None and lock is not None:
        install = f"python -m xp install backend={spec.backend.name} hardware={spec.hardware.name}"
        if lock.files != replace(lock, has_flash=True).files:  # this lock is without FlashAttention
            install += f" backend.attention={spec.backend.attention}"
    return Runtime(
        python=runtime.python,
        project=runtime.project_env,
        image=runtime.image,
        image_checkouts=runtime.image_checkouts,
        lock=None if lock is None else lock.key,
        checkouts=None if sources is None else sources.key,
        packages=tuple(packages),
        install=install,
    )
