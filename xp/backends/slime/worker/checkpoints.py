"""Checkpoints of a run: finds complete ones, selects the one for a restart, and removes old ones.

Slime writes a step's checkpoint in three parts: Megatron's `iter_<rollout id>`, then the Hugging Face export, then the
position in the task view, without which a restart would repeat tasks. With a critic, its `iter_<rollout id>`, in a
separate directory, is written before the position.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from xp.lib.atomic import write_atomically
from xp.lib.verified import DIGESTS
from xp.worker.publish import seal, step_directories

FORM = "iter_{:07d}"
"""Megatron's name of the directory of a checkpoint."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's file with the iteration that a restart loads."""


def whole(checkpoints: Path, critic: Path | None = None) -> list[int]:
    """Rollout ids with a complete checkpoint, oldest first."""
    if critic is None:
        ids = _written(checkpoints)
    else:
        ids = _written(checkpoints) & _written(critic)
    return sorted(rollout_id for rollout_id in ids if _position(checkpoints, rollout_id).is_file())


def choose_latest(checkpoints: Path, critic: Path | None = None) -> int | None:
    """Sets Megatron's trackers to the newest complete checkpoint; returns None, and removes them, if there is none."""
    if not (checkpoints / TRACKER).is_file():
        return None
    known = whole(checkpoints, critic)
    for folder in (checkpoints, *([] if critic is None else [critic])):
        if known:
            write_atomically(folder / TRACKER, str(known[-1]))
        else:
            (folder / TRACKER).unlink(missing_ok=True)
    return known[-1] if known else None


def prune(checkpoints: Path, exports: Path, keep: int, critic: Path | None = None) -> None:
    """Removes all but the newest `keep` complete checkpoints, with their exports; keeps the one being written."""
    known = whole(checkpoints, critic)
    for rollout_id in known[: max(0, len(known) - keep)]:
        # The position is removed first, so that an interrupted removal leaves an incomplete checkpoint.
        _position(checkpoints, rollout_id).unlink(missing_ok=True)
        curriculum_file(checkpoints, rollout_id).unlink(missing_ok=True)
        name = FORM.format(rollout_id)
        for folder in (
            checkpoints / name,
            exports / str(rollout_id),
            *([] if critic is None else [critic / name]),
        ):
            shutil.rmtree(folder, ignore_errors=True)


def seal_exports(
    checkpoints: Path,
    exports: Path,
    end_ids: Sequence[int],
    critic: Path | None = None,
    template: str | None = None,
) -> None:
    """Completes the exports of complete checkpoints, which Slime writes without digests; `end_ids` and `template` as in
    `seal`."""
    for rollout_id in whole(checkpoints, critic):
        export = exports / str(rollout_id)
        if export.is_dir() and not (export / DIGESTS).exists():
            seal(export, end_ids, template)


def _written(checkpoints: Path) -> set[int]:
    known = step_directories(checkpoints, FORM)
    return {
        rollout_id for rollout_id, folder in known.items() if (folder / "metadata.json").is_file()
    }


def curriculum_file(checkpoints: Path, rollout_id: int) -> Path:
    """File with a curriculum's state, beside the position in the task view."""
    return checkpoints / "rollout" / f"curriculum_{rollout_id}.json"


def _position(checkpoints: Path, rollout_id: int) -> Path:
    return checkpoints / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"
