"""The interface of a tracker, and the trackers in a run's spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from xp.errors import ExitCode, XpError
from xp.lib.atomic import write_atomically
from xp.lib.plugins import Kind, load
from xp.lib.secrets.redaction import resolve


@dataclass(frozen=True)
class TrackedRun:
    """Description of a run for a tracker: names, never a secret's value."""

    run_id: str
    attempt: int
    project: str
    config: Mapping[str, Any]
    """The resolved spec."""
    directory: Path
    """Directory of the run."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class Tracker:
    """Receives metrics; opened, called and closed by one thread. Subclasses import their package when they are opened.

    Args:
        run: the run that is opened, or continued if an earlier attempt opened it.
    """

    packages: ClassVar[Mapping[str, str]] = {}
    """Module that must be importable -> what pip installs for it."""
    settings: ClassVar[tuple[str, ...]] = ()
    """Variables with its addresses and modes, which a job that opens it gets from this machine; no secrets."""
    secrets: ClassVar[tuple[str, ...]] = ()
    """Variables with its secrets, which no stage inherits."""
    last_time: float = 0.0
    """Time of the last line that earlier attempts sent to the same curve. 0 means that there is none."""

    def __init__(self, run: TrackedRun) -> None:
        raise NotImplementedError

    def export_secrets(self, run: TrackedRun) -> None:
        """Sets its secrets as variables of this process, for a package that reads them there."""
        os.environ.update({name: run.secrets[name] for name in self.secrets if name in run.secrets})

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """Sends one line; `time`: seconds since 1970."""
        raise NotImplementedError

    def close(self, *, is_success: bool) -> None:
        """Flushes all metrics at the end of the run."""
        raise NotImplementedError

    @classmethod
    def needed(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Names of the secrets without which it cannot send, with these settings."""
        return ()

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Its secrets, by name, as far as they are set; raises XpError (SECRET) for one that is needed."""
        return {**known(cls.secrets), **resolve(cls.needed(os.environ))}

    @classmethod
    def places(cls, run: Path) -> list[str]:
        """Lines about what it left, for the end of a run, with the command that shows or sends it."""
        return []


@dataclass(frozen=True)
class NodeTracking:
    """Trackers that are opened on the job's machine, because the metrics are written there."""

    names: tuple[str, ...]
    project: str
    config: Mapping[str, Any]
    """The resolved spec."""
    env: Mapping[str, str]
    """Settings of the trackers: variable -> value; no secrets."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Names of the variables with the trackers' keys on that machine."""
        return tuple(name for kind in map(tracker, self.names) for name in kind.needed(self.env))


def node_tracking(names: Sequence[str], project: str, config: Mapping[str, Any]) -> NodeTracking:
    """The trackers' part of a job spec, with this machine's settings of them."""
    settings = [name for kind in map(tracker, names) for name in kind.settings]
    env = {name: os.environ[name] for name in settings if os.environ.get(name)}
    return NodeTracking(tuple(map(str, names)), project, config, env)


Opener = Callable[[TrackedRun], Tracker]


def tracker(name: str) -> type[Tracker]:
    """The class of a tracker, xp's or a plugin's; raises XpError where there is none."""
    kind: type[Tracker] = load(
        Kind.TRACKER, name, needs=("packages", "secrets", "settings", "needed", "keys", "places")
    )
    return kind


def openers(names: Sequence[str]) -> dict[str, Opener]:
    """Functions that open each tracker."""
    return {str(name): tracker(name) for name in names}


def secrets_of(names: Sequence[str]) -> tuple[str, ...]:
    """Variables with the secrets of trackers."""
    return tuple(secret for name in names for secret in tracker(name).secrets)


def known(names: Sequence[str]) -> dict[str, str]:
    """Values of those variables that the environment or `.env` has."""
    values: dict[str, str] = {}
    for name in names:
        with suppress(XpError):
            values |= resolve([name])
    return values


def check_trackers(names: Sequence[str]) -> dict[str, str]:
    """Raises XpError for a tracker that is not installed (RUNTIME) or has no key (SECRET); returns the keys."""
    keys: dict[str, str] = {}
    for name in names:
        kind = tracker(name)
        for module, package in kind.packages.items():
            if find_spec(module) is None:
                raise XpError(
                    f"tracking: {name} needs {module}, which is not installed; install: python -m pip install {package}",
                    ExitCode.RUNTIME,
                )
        keys |= kind.keys()
    return keys


def tracked_places(names: Sequence[str], run: Path) -> list[str]:
    """Lines about what each tracker left of a run, with the command that shows or sends it."""
    return [line for name in names for line in tracker(name).places(run)]


class LastTime:
    """File in the run's directory with the time of the last line that was sent, of a tracker that keeps none itself."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.value = 0.0
        if file.exists():
            self.value = float(file.read_text())

    def advance(self, time: float) -> None:
        """Writes the time of a line that was sent, if it is later than all before."""
        self.value = max(self.value, time)
        self._file.parent.mkdir(exist_ok=True)
        write_atomically(self._file, str(self.value))
