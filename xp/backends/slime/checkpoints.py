"""Which of a run's checkpoints are whole, which one a restart goes on from, and which are removed.

A step's checkpoint is three things that Slime writes one after another: Megatron's `iter_<rollout id>`, then the
Hugging Face export, then the position in the task view; only with the last one can a restart go on without repeating
tasks.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from xp.atomic import write_atomically

TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's own file: the iteration that a restart loads."""


def whole(checkpoints: Path) -> list[int]:
    """Rollout ids with a whole checkpoint, oldest first."""
    found = [rollout_id for rollout_id, folder in _iterations(checkpoints) if (folder / "metadata.json").is_file()]
    return sorted(rollout_id for rollout_id in found if _position(checkpoints, rollout_id).is_file())


def choose_latest(checkpoints: Path) -> int | None:
    """Point Megatron's tracker to the newest whole checkpoint; None: there is none, and no tracker any more."""
    if not (checkpoints / TRACKER).is_file():
        return None
    known = whole(checkpoints)
    if not known:
        (checkpoints / TRACKER).unlink()
        return None
    write_atomically(checkpoints / TRACKER, str(known[-1]))
    return known[-1]


def prune(checkpoints: Path, exports: Path, keep: int) -> None:
    """Remove all but the newest `keep` whole checkpoints, with their exports; what is being written stays."""
    known = whole(checkpoints)
    for rollout_id in known[: max(0, len(known) - keep)]:
        # The position goes first: what is left of a removal that was killed is not whole.
        _position(checkpoints, rollout_id).unlink(missing_ok=True)
        for folder in (checkpoints / f"iter_{rollout_id:07d}", exports / str(rollout_id)):
            shutil.rmtree(folder, ignore_errors=True)


def _iterations(checkpoints: Path) -> Iterator[tuple[int, Path]]:
    for folder in checkpoints.glob("iter_*"):
        number = folder.name.removeprefix("iter_")
        if number.isdigit():
            yield int(number), folder


def _position(checkpoints: Path, rollout_id: int) -> Path:
    return checkpoints / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"
