"""The interface of a launcher: runs a stage's job somewhere, follows it, and stops it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from xp.errors import ExitCode, XpError
from xp.execution.tracking.base import NodeTracking
from xp.lib.plugins import Kind, load
from xp.lib.secrets.redaction import Redactor
from xp.planning.job import Stage

if TYPE_CHECKING:  # pydantic is not installed on a cluster's nodes
    from xp.spec.launcher import LauncherSpec

Echo = Callable[[str], None]
"""Function that receives redacted text for the screen, with its line ends."""


@dataclass(frozen=True)
class Context:
    """The run and attempt of a stage; the same for all launchers."""

    run_id: str
    attempt: int
    outputs: Path
    """Absolute path of the outputs root, the job's working directory."""
    directory: str
    """Directory of the attempt, relative to the outputs root."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variable in the job's environment -> value, for this stage only."""
    withheld: frozenset[str] = frozenset()
    """Variables of this process that the job must not inherit: other stages' secrets."""
    redactor: Redactor = field(default_factory=Redactor, repr=False)
    tracking: NodeTracking | None = None
    """Trackers, for a launcher whose jobs open them (`TrackingLauncher`). None means no trackers."""

    @property
    def code(self) -> str:
        """Parent directory of the copied package, relative to the outputs root."""
        return f"{self.directory}/code"

    def log(self, stage: str) -> str:
        return f"{self.directory}/{stage}/log.txt"

    def variables(self, stage: str) -> dict[str, str]:
        """Variables that give a stage's program its run, its attempt and its name."""
        return {"XP_RUN_ID": self.run_id, "XP_ATTEMPT": str(self.attempt), "XP_STAGE": stage}

    def key(self, stage: str) -> str:
        """Name under which a stage is submitted, only once even if `submit` is called again."""
        return f"{self.run_id}/{self.attempt}/{stage}"


class StageContext(NamedTuple):
    """A stage with its run and attempt."""

    stage: Stage
    context: Context

    @property
    def directory(self) -> Path:
        """Directory of the stage, on this machine."""
        return self.context.outputs / self.context.directory / self.stage.name

    @property
    def code(self) -> Path:
        """Parent directory of the copied package, on this machine."""
        return self.context.outputs / self.context.code

    @property
    def tracking(self) -> NodeTracking | None:
        """Trackers that the stage's machine opens; None for a stage without metrics."""
        run = f"runs/{self.context.run_id}"
        # The file, or the places of a stage that writes it.
        signs = (f"{run}/metrics.jsonl", f'"run": "{run}"')
        if any(sign in text for text in self.stage.job.files.values() for sign in signs):
            return self.context.tracking
        return None

    @property
    def secrets(self) -> tuple[str, ...]:
        """Variables with its secrets, and with its trackers' keys."""
        tracking = self.tracking
        return tuple(sorted({*self.stage.job.secrets, *(tracking.secrets if tracking else ())}))


@dataclass(frozen=True)
class Launch:
    """A submitted job."""

    launcher: str
    key: str
    native_id: str
    log: str
    """Path of the log, relative to the outputs root."""
    started: str
    """Time of the submission in UTC, ISO 8601."""


def timestamp() -> str:
    """Current time in the format of records: UTC, ISO 8601, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Launcher(Protocol):
    """Runs jobs. Every implementation passes xp.contrib.contracts.launcher.LauncherSuite."""

    @property
    def name(self) -> str: ...

    @property
    def is_here(self) -> bool:
        """Returns whether this machine can access the jobs' files: interpreters, and the outputs root with the
        results."""

    def check(self, stages: Sequence[Stage], context: Context) -> None:
        """Raises XpError(RUNTIME) if the jobs need something that is missing; creates nothing of the run."""

    def submit(self, stage: Stage, context: Context) -> Launch:
        """Writes the job's files and starts it; a second call for the same stage and attempt returns the first
        launch."""

    def wait(self, launch: Launch, echo: Echo) -> int:
        """Follows the log until the job ends; returns the exit code (128 + n: killed by signal n)."""

    def cancel(self, launch: Launch, *, now: bool = False) -> None:
        """Stops the job and all its processes; returns at once, and can be called from a signal handler."""

    def close(self, context: Context) -> None:
        """Ends processes that were started only for this attempt, and removes its secrets."""


class LauncherModule(Protocol):
    """Functions of a launcher's module. A plugin's module also has `Options`: a pydantic model of
    `launcher.options`."""

    def make_launcher(self, spec: LauncherSpec, outputs: Path) -> Launcher:
        """The launcher for runs below this outputs root."""

    def limit(self, spec: LauncherSpec, stage: Stage) -> str | None:
        """One sentence, with a remedy, if this launcher can never run such a job; None if it can. Uses only the
        plan."""


@runtime_checkable
class Detachable(Launcher, Protocol):
    """A launcher whose jobs need no supervisor; another process can continue with the Launch alone."""

    def submit_all(self, stages: Sequence[StageContext]) -> list[Launch]:
        """Submits a chain of stages; each starts only if all earlier ones succeeded."""

    def poll(self, launch: Launch) -> int | None:
        """The exit code; None while the job is queued or running."""

    def fetch(self, launch: Launch) -> None:
        """Copies the current log and small results of the job to this machine, if `is_here` is false."""


@runtime_checkable
class TrackingLauncher(Protocol):
    """A launcher whose jobs open trackers themselves; its Context has `tracking`."""

    tells: tuple[str, ...]
    """Names of these trackers."""
    brings_metrics: bool
    """True if a stage's metrics are on this machine after its end, for the other trackers."""


@runtime_checkable
class SweepLauncher(Launcher, Protocol):
    """A launcher that can submit the runs of a sweep together."""

    def begin(self, sweep: Mapping[str, Sequence[Stage]]) -> None:
        """Prepares for these runs (run id -> its stages), which are then submitted one after the other."""

    def finish(self) -> None:
        """Releases the runs after all of them are submitted."""


@runtime_checkable
class PreviewLauncher(Launcher, Protocol):
    """A launcher that passes files to another program."""

    def preview(self, stages: Sequence[StageContext]) -> Mapping[str, str]:
        """Files that would be submitted (path relative to the outputs root -> text); writes nothing, sends nothing."""


@runtime_checkable
class RemoteLauncher(Detachable, Protocol):
    """A launcher whose outputs are not on this machine."""

    def fetch_directories(self, names: Sequence[str]) -> list[str]:
        """Copies these directories (relative to the outputs root) to this machine; returns those that exist."""


def make_launcher(spec: LauncherSpec, outputs: Path) -> Launcher:
    """The spec's launcher, for runs below this outputs root.

    Args:
        spec: the launcher's section.
        outputs: the outputs root.

    Raises:
        XpError: a plugin's launcher cannot be imported, or does not support `detach`.
    """
    module: LauncherModule = load(Kind.LAUNCHER, spec.name, needs=("make_launcher", "limit"))
    launcher = module.make_launcher(spec, outputs)
    if spec.detach and not isinstance(launcher, Detachable):
        reason = f"launcher={spec.name} has no jobs that continue without this process"
        raise XpError(f"launcher.detach: {reason}; set it to false", ExitCode.PLAN)
    return launcher
