"""SkyRL's checkpoints and their models: directories of other names stay, and an adapter becomes whole weights."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

from xp.lib.atomic import write_atomically
from xp.lib.models.files import local_directory
from xp.worker.adapters import merge_adapters
from xp.worker.media import restore_media
from xp.worker.publish import step_directories

FORM: Final = "global_step_{}"
"""Name of the directory of a step's checkpoint, and of its export; SkyRL takes each `global_step_*` for one."""
LATEST: Final = "latest_ckpt_global_step.txt"
"""SkyRL's file with the step of the newest complete checkpoint."""
STATE: Final = "trainer_state.pt"
"""File of a checkpoint, written after the models'."""


def save_policy(trainer: Any, dtype: str, target: Path) -> None:
    """Writes the policy as a Hugging Face directory with whole weights.

    Args:
        trainer: a trainer of SkyRL's.
        dtype: data type of the computation.
        target: path of the directory.
    """
    trainer.dispatch.save_hf_model("policy", str(target.absolute()), trainer.tokenizer)
    merge_adapters(target, dtype)
    policy = trainer.cfg.trainer.policy.model
    start = local_directory(policy.path, Path.cwd())
    if start is not None:
        restore_media(target, start, trains_vision=getattr(policy, "train_vision", False))


def prune_exports(exports: Path, checkpoints: Path) -> None:
    """Removes Hugging Face models of checkpoints that SkyRL has deleted, which SkyRL itself keeps.

    Args:
        exports: directory with one `global_step_<n>` for each model.
        checkpoints: directory with one `global_step_<n>` for each remaining checkpoint.
    """
    for export in step_directories(exports, FORM).values():
        if not (checkpoints / export.name).exists():
            shutil.rmtree(export)


def choose_latest(checkpoints: Path) -> None:
    """Makes SkyRL resume from the newest whole checkpoint.

    SkyRL fails where its file of the latest step is torn, or names a directory that is gone.
    """
    file = checkpoints / LATEST
    known = step_directories(checkpoints, FORM)
    latest = file.read_text().strip() if file.is_file() else None
    if latest is None or latest in map(str, known):
        return
    whole = [step for step, directory in known.items() if (directory / STATE).is_file()]
    if whole:
        remedy = f"training continues from {FORM.format(max(whole))}"
        write_atomically(file, str(max(whole)))
    else:
        remedy = "training begins anew"
        file.unlink()
    missing = checkpoints / FORM.format(latest)
    print(f"xp: {missing} is missing: {remedy}", file=sys.stderr, flush=True)


def prune(checkpoints: str, keep: int) -> None:
    """Removes all but the newest `keep` checkpoints, and none for a negative number, as SkyRL; runs on each node."""
    if keep < 0:
        return
    known = step_directories(Path(checkpoints), FORM)
    for step in sorted(known)[: max(0, len(known) - keep)]:
        shutil.rmtree(known[step], ignore_errors=True)


def hide_other_directories() -> None:
    """Makes SkyRL's check of the latest checkpoint ignore directories of other names, at which it would fail."""
    from skyrl.train.utils import trainer_utils

    def names(checkpoint_base_path: str) -> list[str]:
        known = step_directories(Path(checkpoint_base_path), FORM)
        return [known[step].name for step in sorted(known)]

    trainer_utils.list_checkpoint_dirs = names
