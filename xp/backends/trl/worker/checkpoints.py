"""Verified checkpoints: sealed when complete, and checked before a run resumes from one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from xp.backends.trl.worker.config import TRLTrainConfig
from xp.backends.trl.worker.process import Ranks
from xp.errors import XpError
from xp.lib.verified import DIGESTS, damaged
from xp.worker.publish import seal, step_directories
from xp.worker.time_limit import check_time

FORM = "checkpoint-{}"
"""Trainer's name of the directory of a checkpoint, by the number of optimizer updates."""


def step_of(checkpoint: Path) -> int:
    """Number of the optimizer update after which a checkpoint was written, from its name."""
    return int(checkpoint.name.rpartition("-")[2])


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest intact checkpoint; newer damaged ones are named on stderr and skipped."""
    known = step_directories(directory, FORM)
    for step in sorted(known, reverse=True):
        checkpoint = known[step]
        fault = broken(checkpoint)
        if fault is None:
            return checkpoint
        print(f"{checkpoint} is skipped: {fault}", file=sys.stderr, flush=True)
    return None


def prune(directory: Path, keep: int) -> None:
    """Removes all but the `keep` checkpoints that were written last.

    After a damaged one was skipped, the checkpoint with the largest number may be an older one.
    """
    known = step_directories(directory, FORM)
    by_time = sorted(known, key=lambda step: (known[step].stat().st_mtime_ns, step))
    for step in by_time[: max(0, len(known) - keep)]:
        shutil.rmtree(known[step], ignore_errors=True)


def broken(checkpoint: Path) -> str | None:
    """Returns the fault of a checkpoint; None if all files match its digests, which are written last."""
    manifest = checkpoint / DIGESTS
    if manifest.is_file():
        return damaged(manifest)
    return "it was never finished"


def save_checkpoint(trainer: Any, ranks: Ranks) -> None:
    """Writes a checkpoint of the training's state, unless it exists; every rank must call it."""
    here = Path(trainer.args.output_dir) / FORM.format(trainer.state.global_step)
    (is_whole,) = ranks.gather([broken(here) is None])[0]
    if not is_whole:
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.control = trainer.callback_handler.on_save(
            trainer.args, trainer.state, trainer.control
        )


class EndInTime(TrainerCallback):  # type: ignore[misc]
    """Ends the training after a checkpoint, if the time is up; after Seal. The first rank decides for all."""

    def __init__(self, config: TRLTrainConfig, ranks: Ranks) -> None:
        self._config = config
        self._ranks = ranks

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        error = None
        if not 0 < state.global_step < state.max_steps:
            return
        if self._ranks.is_main:
            try:
                check_time(self._config, self._config.rollout_steps(state.global_step))
            except XpError as raised:
                error = raised
        error = self._ranks.gather([error])[0][0]
        if error is not None:
            raise error


class Seal(TrainerCallback):  # type: ignore[misc]
    """Seals each checkpoint when all ranks have written their parts, and removes old ones."""

    def __init__(self, ranks: Ranks, end_ids: Sequence[int], template: str | None = None) -> None:
        self._ranks = ranks
        self._template = template
        self._end_ids = end_ids

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._ranks.wait()
        if self._ranks.is_main:
            checkpoint = Path(args.output_dir) / FORM.format(state.global_step)
            seal(checkpoint, self._end_ids, self._template)
            if args.save_total_limit:
                prune(Path(args.output_dir), args.save_total_limit)
