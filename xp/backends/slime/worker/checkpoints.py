"""Checkpoints of a run: which are whole, which one a restart loads, and which are removed.

A step's checkpoint is three things that Slime writes one after another: Megatron's `iter_<rollout id>`, then the
Hugging Face export, then the position in the task view; only with the last one can a restart go on without repeating
tasks. With a critic it is four: the critic's `iter_<rollout id>`, in a directory of its own, comes before the position.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from xp.atomic import replacing, write_atomically

TRACKER = "latest_checkpointed_iteration.txt"
"""Megatron's own file: the iteration that a restart loads."""


def whole(checkpoints: Path, critic: Path | None = None) -> list[int]:
    """Rollout ids with a whole checkpoint, oldest first."""
    found = _written(checkpoints) if critic is None else _written(checkpoints) & _written(critic)
    return sorted(rollout_id for rollout_id in found if _position(checkpoints, rollout_id).is_file())


def choose_latest(checkpoints: Path, critic: Path | None = None) -> int | None:
    """Point Megatron's trackers to the newest whole checkpoint; None: there is none, and no tracker any more."""
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
    """Remove all but the newest `keep` whole checkpoints, with their exports; what is being written stays."""
    known = whole(checkpoints, critic)
    for rollout_id in known[: max(0, len(known) - keep)]:
        # The position goes first: what is left of a removal that was killed is not whole.
        _position(checkpoints, rollout_id).unlink(missing_ok=True)
        name = f"iter_{rollout_id:07d}"
        for folder in (checkpoints / name, exports / str(rollout_id), *([] if critic is None else [critic / name])):
            shutil.rmtree(folder, ignore_errors=True)


def put_position(checkpoints: Path, rollout_id: int, prompts_per_step: int, group_size: int) -> None:
    """Make a restart begin with the tasks of the step after this one.

    Slime's train_async.py has drawn them already when it writes a checkpoint, and would leave them out.
    """
    import torch

    num_prompts = (rollout_id + 1) * prompts_per_step
    path = _position(checkpoints, rollout_id)
    state = torch.load(path, weights_only=False)
    # The view of the tasks is one epoch, as long as the training.
    state |= {"sample_offset": num_prompts, "epoch_id": 0}
    state |= {"sample_group_index": num_prompts, "sample_index": num_prompts * group_size}
    with replacing(path) as part:
        torch.save(state, part)


def _written(checkpoints: Path) -> set[int]:
    return {rollout_id for rollout_id, folder in _iterations(checkpoints) if (folder / "metadata.json").is_file()}


def _iterations(checkpoints: Path) -> Iterator[tuple[int, Path]]:
    for folder in checkpoints.glob("iter_*"):
        number = folder.name.removeprefix("iter_")
        if number.isdigit():
            yield int(number), folder


def _position(checkpoints: Path, rollout_id: int) -> Path:
    return checkpoints / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"
