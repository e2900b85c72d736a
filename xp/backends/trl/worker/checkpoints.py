"""Checkpoints that can be trusted: sealed once whole, checked before a run goes on from one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from xp.atomic import write_atomically
from xp.backends.trl.worker.ranks import Ranks
from xp.digest import file_digest
from xp.security.names import is_inner_path

SEAL = "sealed.json"
"""Within a checkpoint, written last: each file's size and sha256."""


def seal(checkpoint: Path) -> None:
    """Write down what is there, now that it is whole."""
    files = {
        str(file.relative_to(checkpoint)): {"size": file.stat().st_size, "sha256": file_digest(file)}
        for file in sorted(checkpoint.rglob("*"))
        if file.is_file() and file.name != SEAL
    }
    write_atomically(checkpoint / SEAL, json.dumps(files, indent=1) + "\n")


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest checkpoint that is as it was sealed; newer ones that are not are named on stderr and passed over."""
    found = sorted(directory.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for checkpoint in found:
        fault = broken(checkpoint)
        if fault is None:
            return checkpoint
        print(f"{checkpoint} is passed over: {fault}", file=sys.stderr, flush=True)
    return None


def broken(checkpoint: Path) -> str | None:
    """Returns what is wrong with a checkpoint; None if every file is as it was sealed."""
    try:
        files: dict[str, dict[str, Any]] = json.loads((checkpoint / SEAL).read_text())
        for name, sealed in files.items():
            file = checkpoint / name
            if not is_inner_path(name) or not file.is_file():
                return f"{name!r} is missing"
            if file.stat().st_size != sealed["size"] or file_digest(file) != sealed["sha256"]:
                return f"{name} is not what was saved"
    except FileNotFoundError:
        return "it was never finished"
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return f"its {SEAL} cannot be read"
    return None


def save_checkpoint(trainer: Any, ranks: Ranks) -> None:
    """Leave a checkpoint of the training's state, where it has none; every rank must call it."""
    here = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    (is_whole,) = ranks.gather([broken(here) is None])[0]
    if not is_whole:
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


class Seal(TrainerCallback):  # type: ignore[misc]
    """Seals each checkpoint when all ranks have written their part of it."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._ranks.wait()
        if self._ranks.is_main:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}")
