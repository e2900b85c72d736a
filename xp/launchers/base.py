"""The interface of a launcher: runs a stage's job somewhere, follows it, and stops it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from xp.job import Stage
from xp.security.secrets import Redactor
from xp.tracking.base import NodeTracking

if TYPE_CHECKING:  # a node of a cluster has no pydantic
    from xp.spec.place import LauncherSpec

Echo = Callable[[str], None]
"""Takes text for the screen, redacted, with its line ends."""


@dataclass(frozen=True)
class Context:
    """The run and attempt of a stage; the same for all launchers."""

    run_id: str
    attempt: int
    outputs: Path
    """Absolute; the job's working directory."""
    directory: str
    """Directory of the attempt, relative to the outputs root."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variable in the job's environment -> value, for this stage alone."""
    withheld: frozenset[str] = frozenset()
    """Variables of this process that the job must not inherit: other stages' secrets."""
    redactor: Redactor = field(default_factory=Redactor, repr=False)
    tracking: NodeTracking | None = None
    """For a launcher whose jobs tell trackers themselves (`Telling`)."""

    @property
    def code(self) -> str:
        """The copied package's parent, relative to the outputs root."""
        return f"{self.directory}/code"

    def log(self, stage: str) -> str:
        return f"{self.directory}/{stage}/log.txt"

    def key(self, stage: str) -> str:
        """A stage is submitted once under this name, however often it is asked for."""
        return f"{self.run_id}/{self.attempt}/{stage}"


@dataclass(frozen=True)
class Launch:
    """A job that was handed over."""

    launcher: str
    key: str
    native_id: str
    log: str
    """Relative to the outputs root."""
    started: str
    """UTC, ISO 8601."""


def now() -> str:
    """The time as records and launches hold it: UTC, ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Launcher(Protocol):
    """A way to run jobs. Every implementation passes xp.testing.launcher.LauncherSuite."""

    @property
    def name(self) -> str: ...

    @property
    def is_here(self) -> bool:
        """Returns whether this machine sees the jobs' files: interpreters, and the outputs root with their results."""

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Raise XpError(RUNTIME) for what these jobs need and this place has not; nothing of the run is created."""

    def submit(self, stage: Stage, context: Context) -> Launch:
        """Write the job's files and start it; a second submission of the same stage of an attempt is the first one."""

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follow the log until the end; returns the exit code (128 + n: killed by signal n)."""

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Ask the job to end, then everything that it started; returns at once, may be called from a signal handler."""

    def close(self, context: Context) -> None:
        """The attempt is over: end what was started for it alone, and remove its secrets."""


class LauncherModule(Protocol):
    """Content of a launcher's module. A plugin's module also has `Options`: a pydantic model of `launcher.options`."""

    def make_launcher(self, spec: LauncherSpec, outputs: Path) -> Launcher:
        """The launcher for runs below this outputs root."""

    def limit(self, spec: LauncherSpec, stage: Stage) -> str | None:
        """One sentence, with the way out, where this launcher cannot run such a job anywhere; from the plan alone."""


@runtime_checkable
class Detachable(Launcher, Protocol):
    """A launcher whose jobs need nobody to wait for them. Its Launch is enough for another process to go on."""

    def submit_all(self, stages: Sequence[tuple[Stage, Context]]) -> list[Launch]:
        """Submit stages that follow each other, each only if all before it ended well."""

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the job is queued or runs."""

    def fetch(self, launch: Launch) -> None:
        """Copies the current log and small results of the job here, if `is_here` is false."""


@runtime_checkable
class Telling(Protocol):
    """A launcher whose jobs tell trackers themselves; its Context has `tracking`."""

    tells: tuple[str, ...]
    """Names of these trackers."""
    brings_metrics: bool
    """True if a stage's metrics are on this machine once it ends, for the other trackers."""


@runtime_checkable
class Grouping(Launcher, Protocol):
    """A launcher that can hand in the runs of a sweep together."""

    def begin(self, sweep: Mapping[str, Sequence[Stage]]) -> None:
        """Prepare for these runs (run id -> its stages), which are submitted one after the other."""

    def finish(self) -> None:
        """All of them are submitted."""


@runtime_checkable
class Showing(Launcher, Protocol):
    """A launcher that hands a text to another program."""

    def preview(self, stages: Sequence[tuple[Stage, Context]]) -> Mapping[str, str]:
        """Files that would be submitted (path relative to the outputs root -> text). Writes nothing and asks nobody."""


@runtime_checkable
class Distant(Detachable, Protocol):
    """A launcher that keeps the outputs elsewhere."""

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Bring these directories (relative to the outputs root) here; returns those that are there."""
