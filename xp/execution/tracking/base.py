"""The interface of a tracker, and the trackers in a run's spec."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from xp.errors import ExitCode, XpError
from xp.lib.secrets.redaction import resolve

WANDB_KEY = "WANDB_API_KEY"
WANDB_SETTINGS = ("WANDB_MODE", "WANDB_BASE_URL", "WANDB_ENTITY")


class Tracker(Protocol):
    """Receives metrics; called from one thread."""

    last_time: float
    """Time of the last line that earlier attempts sent to the same curve. 0 means that there is none."""

    def log(self, step: int, time: float, metrics: Mapping[str, float]) -> None: ...

    def close(self, *, is_success: bool) -> None:
        """Flushes all metrics at the end of the run."""


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
        if "wandb" in self.names and needs_key(self.env):
            return (WANDB_KEY,)
        return ()


def node_tracking(names: Sequence[str], project: str, config: Mapping[str, Any]) -> NodeTracking:
    """The trackers' part of a job spec, with this machine's settings of W&B."""
    env = {name: os.environ[name] for name in WANDB_SETTINGS if os.environ.get(name)}
    return NodeTracking(tuple(map(str, names)), project, config, env)


def needs_key(environ: Mapping[str, str]) -> bool:
    """Returns whether W&B sends metrics to its server, for which it needs a key."""
    return environ.get("WANDB_MODE", "online") not in ("offline", "disabled", "dryrun")


Opener = Callable[[TrackedRun], Tracker]


def check_trackers(names: Sequence[str]) -> dict[str, str]:
    """Raises XpError for a tracker that is not installed (RUNTIME) or has no key (SECRET); returns the keys."""
    for name in names:
        if find_spec(name) is None:
            raise XpError(
                f"tracking: {name} is not installed; install: python -m pip install {name}",
                ExitCode.RUNTIME,
            )
    if "wandb" not in names or not needs_key(os.environ):
        return {}
    try:
        return resolve([WANDB_KEY])
    except XpError as error:
        if _is_logged_in():
            return {}
        raise XpError(f"{error}; WANDB_MODE=offline needs none", ExitCode.SECRET) from None


def _is_logged_in() -> bool:
    """Returns whether `wandb login` left a key in ~/.netrc."""
    import netrc
    from urllib.parse import urlsplit

    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def tracked_places(names: Sequence[str], run: Path) -> list[str]:
    """One line for each tracker that left files in a run's directory, with the command that shows or sends them."""
    lines = []
    offline = sorted((run / "wandb").glob("offline-run-*"))
    if "wandb" in names and offline:
        paths = " ".join(shlex.quote(str(path)) for path in offline)
        lines.append(f"W&B, offline  {run / 'wandb'}  (send it: wandb sync {paths})")
    elif "wandb" in names and os.environ.get("WANDB_MODE") == "disabled":
        lines.append("W&B           WANDB_MODE=disabled: nothing was kept or sent")
    if "tensorboard" in names and (run / "tensorboard").is_dir():
        place = run / "tensorboard"
        lines.append(
            f"TensorBoard   {place}  (show it: tensorboard --logdir {shlex.quote(str(place))})"
        )
    return lines
