"""The interface between plans and launchers: values that can be JSON, independent of backends and launchers.

Every path in a Job is relative to the outputs root, which is its working directory; no machine's path is in a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Resources:
    """Resources that a job needs."""

    accelerator: str
    """`cpu` or a name that the launchers translate (`a100-80gb`, `h100`, `h200`)."""
    num_accelerators: int
    """Accelerators per node; 0 for cpu."""
    num_nodes: int
    num_cpus: int
    memory_gb: float


@dataclass(frozen=True)
class Runtime:
    """The Python of a job. All None: the interpreter that runs xp."""

    python: str | None = None
    """Path of a virtual environment's interpreter."""
    project: str | None = None
    """Name of the environment variable that holds a checkout (`SKYRL_PATH`, ...)."""
    image: str | None = None
    image_checkouts: Mapping[str, str] = field(default_factory=dict)
    """Variable that names a checkout -> its path in the image."""
    lock: str | None = None
    """Key of the lock of its environment (`xp.planning.runtimes`); used where neither of the first two is set."""
    checkouts: str | None = None
    """Key of the checkouts that `install` makes (`xp.planning.runtimes`); used for variables that are not set."""
    packages: tuple[str, ...] = ()
    """Modules that must be importable there, checked before the start."""
    install: str | None = None
    """Command that makes such a Python, as text. None means `pip install` with the modules' names."""


@dataclass(frozen=True)
class Job:
    """One process to run. `argv[0] == "python"` means the runtime's interpreter."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    """Path (relative to the outputs root) -> text, written before the start."""
    outputs: tuple[str, ...]
    """Paths that must exist after exit 0; otherwise the stage failed."""
    resources: Resources
    runtime: Runtime = Runtime()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable in the job's environment -> variable that has the value at launch. Names only, never values."""
    stubs: tuple[str, ...] = ()
    """Parts that xp replaces in this job because the machine lacks them (`vLLM: xp's own engine`); they are
    recorded."""


@dataclass(frozen=True)
class Stage:
    """One stage of a plan."""

    name: str
    job: Job
    needs: tuple[str, ...] = ()
    done: str | None = None
    """Path of a manifest whose presence means that this stage's result exists, content-addressed unless `made_in` is
    set. None means that it always runs."""
    made_in: str | None = None
    """Earlier stage of the same attempt that usually makes this stage's result too; then this stage is skipped."""

    @property
    def is_shared(self) -> bool:
        """Returns whether the result is content-addressed, so that runs share it."""
        return self.done is not None and self.made_in is None

    @property
    def promised(self) -> tuple[str, ...]:
        """Paths that must exist after the stage."""
        return tuple(dict.fromkeys((*self.job.outputs, *([self.done] if self.done else []))))
