"""Locations of a run's metrics on this machine, by tracker, and the commands that show or send them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path


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
        lines.append(f"TensorBoard   {place}  (show it: tensorboard --logdir {shlex.quote(str(place))})")
    return lines
