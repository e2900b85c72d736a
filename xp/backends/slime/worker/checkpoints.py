"""Checkpoints of a run: finds complete ones, selects the one for a restart, and removes old ones.

Slime writes a step's checkpoint in three parts: Megatron's `iter_<rollout id>`, then the Hugging Face export, then the
position in the task view, without which a restart would repeat tasks. With a critic, its `iter_<rollout id>`, in a
separate directory, is written before the position.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xp.lib.atomic import write_atomically
from xp.lib.verified import DIGESTS
from xp.worker.publish import seal, step_directories

FORM = "iter_{:07d}"
"""Megatron's name of the directory of a checkpoint."""
TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's file with the iteration that a restart loads."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a stage."""

    directory: Path
    """Value of --save and --load."""
    exports: Path
    """Directory of the Hugging Face exports, `<exports>/<rollout id>`."""
    critic_directory: Path | None = None
    """Directory of the critic's. None means that there is no critic."""

    @property
    def directories(self) -> tuple[Path, ...]:
        """Those of the policy's and of the critic's checkpoints."""
        if self.critic_directory is None:
            return (self.directory,)
        return (self.directory, self.critic_directory)

    def whole(self) -> list[int]:
        """Rollout ids with a complete checkpoint, oldest first."""
        ids = set.intersection(*map(_written_steps, self.directories))
        return sorted(
            rollout_id for rollout_id in ids if _position(self.directory, rollout_id).is_file()
        )

    def choose_latest(self) -> int | None:
        """Sets Megatron's trackers to the newest complete checkpoint; returns None, and removes them, if there is
        none."""
        if not (self.directory / TRACKER).is_file():
            return None
        latest = max(self.whole(), default=None)
        for folder in self.directories:
            if latest is None:
                (folder / TRACKER).unlink(missing_ok=True)
            else:
                write_atomically(folder / TRACKER, str(latest))
        return latest

    def prune(self, keep: int) -> None:
        """Removes all but the newest `keep` complete checkpoints, with their exports; keeps the one being written."""
        known = self.whole()
        for rollout_id in known[: max(0, len(known) - keep)]:
            # The position is removed first, so that an interrupted removal leaves an incomplete checkpoint.
            _position(self.directory, rollout_id).unlink(missing_ok=True)
            curriculum_file(self.directory, rollout_id).unlink(missing_ok=True)
            for folder in self.directories:
                shutil.rmtree(folder / FORM.format(rollout_id), ignore_errors=True)
            shutil.rmtree(self.exports / str(rollout_id), ignore_errors=True)

    def seal_exports(self, end_ids: Sequence[int], template: str | None = None) -> None:
        """Completes the exports of complete checkpoints, which Slime writes without digests; arguments as in `seal`."""
        for rollout_id in self.whole():
            export = self.exports / str(rollout_id)
            if export.is_dir() and not (export / DIGESTS).exists():
                seal(export, end_ids, template)


def _written_steps(checkpoints: Path) -> set[int]:
    known = step_directories(checkpoints, FORM)
    return {
        rollout_id for rollout_id, folder in known.items() if (folder / "metadata.json").is_file()
    }


def curriculum_file(checkpoints: Path, rollout_id: int) -> Path:
    """File with a curriculum's state, beside the position in the task view."""
    return checkpoints / "rollout" / f"curriculum_{rollout_id}.json"


def _position(checkpoints: Path, rollout_id: int) -> Path:
    return checkpoints / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"
