"""Configuration of SkyRL's stage programs: frozen values, written by render above the wall. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.best import BestRule
from xp.worker.stage import EvaluateConfig, Sampling, StageConfig, TrainConfig

STEPS_KEY = "trainer.max_training_steps"
REFERENCE_KEY = "trainer.ref.model.path"
OWN_ESTIMATOR = "xp"
"""Name in SkyRL's registry of what worker/advantages.py computes; its parser takes registered ones only."""


@dataclass(frozen=True)
class SkyRLStageConfig(StageConfig):
    """Fields that training and evaluation share."""

    num_threads: int
    num_workers: int
    """Processes that train."""
    sampling: Sampling
    rehearsal: bool
    """No accelerator: SkyRL's own loop on the CPU."""
    stand_in: bool
    """xp's own engine answers in vLLM's place."""
    overrides: tuple[str, ...]
    """Native `key.path=value`, for SkyRLTrainConfig.from_cli_overrides: all but the paths; see `native`."""
    paths: Mapping[str, str]
    """Native key -> path, relative like the others."""
    model_keys: tuple[str, ...]
    """Native keys that hold the model."""

    def native(self, model: str, root: Path, reference: str | None = None) -> list[str]:
        """The complete overrides, with absolute paths: Ray's workers have working directories of their own.

        Args:
            model: a Hugging Face id, or a directory (absolute, or relative to `root`).
            root: the outputs root.
            reference: the KL penalty's model, likewise; None: nothing is trained.
        """
        paths = {key: str(root / path) for key, path in self.paths.items()}
        paths |= dict.fromkeys(self.model_keys, _place(model, root))
        if reference is not None:
            paths[REFERENCE_KEY] = _place(reference, root)
        return [*self.overrides, *(f"{key}={json.dumps(_value(key, path))}" for key, path in paths.items())]


@dataclass(frozen=True)
class SkyRLTrainStageConfig(TrainConfig):
    """Input of xp.backends.skyrl.worker.train."""

    common: SkyRLStageConfig
    train_data: str
    """Parquet that the stage writes for SkyRL: steps x `prompts_per_step` rows in the order of training, which
    is one epoch of SkyRL's; also in common.paths."""
    held_out_data: str
    """Parquet of held-out tasks that the stage writes; also in common.paths."""
    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""
    during: Rounds | None
    """Rounds of an evaluation while training; None: there is none."""
    estimator: str
    """In xp's words: whose advantages are wanted."""
    advantage_fn: str | None
    """`package.module:function` of the user's own."""
    best: BestRule | None
    """Rule on the evaluations while training."""

    def with_length(self, length: Length) -> SkyRLTrainStageConfig:
        """Returns a copy with this number of rollout steps."""
        others = (text for text in self.common.overrides if not text.startswith(f"{STEPS_KEY}="))
        common = replace(self.common, overrides=(*others, f"{STEPS_KEY}={length.steps}"))
        return replace(self, length=length, common=common)


@dataclass(frozen=True)
class SkyRLEvaluateConfig(EvaluateConfig):
    """Input of xp.backends.skyrl.worker.evaluate."""

    common: SkyRLStageConfig
    held_out_data: str
    """Parquet of held-out tasks that the stage writes; also in common.paths."""
    batch_size: int
    """Episodes played at the same time."""


def _place(model: str, root: Path) -> str:
    directory = root / model
    return str(directory) if directory.is_dir() else model


def _value(key: str, path: str) -> str | list[str]:
    """`data.train_data` and `data.val_data` are lists of files."""
    return [path] if key.startswith("data.") else path
