"""Checkpoints of a training on a service: a directory with the service's paths, the adapters, and xp's own state."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from xp.errors import ExitCode
from xp.lib.atomic import write_atomically
from xp.lib.reading import json_of
from xp.lib.verified import DIGESTS, damaged
from xp.worker.publish import step_directories

FILE: Final = "tinker.json"
"""File of a checkpoint or a published model: the service's path of its weights with the optimizer, and xp's state."""
FORM: Final = "step-{}"


def has_state(directory: Path) -> bool:
    """Returns whether a directory names weights on a service."""
    return (directory / FILE).is_file()


def read_state(directory: Path) -> Mapping[str, Any]:
    """The state of a checkpoint or a published model; empty where it has none."""
    if not has_state(directory):
        return {}
    state: Mapping[str, Any] = json_of(directory / FILE, ExitCode.RUN_DIR)
    return state


def write_state(directory: Path, state: Mapping[str, Any]) -> None:
    """Writes the state of a checkpoint or a published model."""
    write_atomically(directory / FILE, json.dumps(state, indent=1) + "\n")


def latest(checkpoints: Path) -> Path | None:
    """The newest intact checkpoint; newer damaged ones are named on stderr and skipped."""
    known = step_directories(checkpoints, FORM)
    for step in sorted(known, reverse=True):
        manifest = known[step] / DIGESTS
        fault = damaged(manifest) if manifest.is_file() else "it was never finished"
        if fault is None:
            return known[step]
        print(f"{known[step]} is skipped: {fault}", file=sys.stderr, flush=True)
    return None


def prune(checkpoints: Path, keep: int, forget: Callable[[str], None]) -> None:
    """Removes all but the newest checkpoints, here and by `forget` on the service."""
    known = step_directories(checkpoints, FORM)
    for step in sorted(known)[: max(0, len(known) - keep)]:
        forget(str(read_state(known[step]).get("state", "")))
        shutil.rmtree(known[step], ignore_errors=True)
