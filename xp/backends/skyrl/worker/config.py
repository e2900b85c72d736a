"""Configuration of SkyRL's stage programs, written by the control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from xp.worker.sft import SftConfig
from xp.worker.skyrl_names import STEPS_KEY
from xp.worker.stage import StageConfig, TrainConfig

TRAIN_DATA = "data.train_data"
HELD_OUT_DATA = "data.val_data"
REFERENCE_KEY = "trainer.ref.model.path"


@dataclass(frozen=True, kw_only=True)
class SkyRLStageConfig(StageConfig):
    """Fields of both training and fine-tuning."""

    num_workers: int | None
    """Number of training processes of a rehearsal, which pretend to be accelerators. None means no rehearsal."""
    stub: bool
    """True if xp's own engine replaces vLLM."""
    native_keys: tuple[str, ...]
    """`key.path=value` for SkyRLTrainConfig.from_cli_overrides, without paths; see `native`."""
    paths: Mapping[str, str]
    """Native key -> path, relative to the outputs root. The stage writes the Parquet files TRAIN_DATA (steps x
    `prompts_per_step` rows in the order of training, one epoch for SkyRL) and HELD_OUT_DATA."""
    model_keys: tuple[str, ...]
    """Native keys whose value is the model."""

    def native(self, model: str, root: Path, reference: str | None = None) -> list[str]:
        """The complete overrides, with absolute paths, since Ray's workers have other working directories.

        Args:
            model: a Hugging Face id, or a directory (absolute, or relative to `root`).
            root: the outputs root.
            reference: the KL penalty's model, in the same form. None means that nothing is trained.
        """
        models = dict.fromkeys(self.model_keys, model)
        if reference is not None:
            models[REFERENCE_KEY] = reference
        values: dict[str, Any] = {key: str(root / path) for key, path in self.paths.items()}
        for key in (TRAIN_DATA, HELD_OUT_DATA):
            if key in values:
                values[key] = [values[key]]  # lists of files
        for key, name in models.items():
            values[key] = str(root / name) if (root / name).is_dir() else name
        return [*self.native_keys, *(f"{key}={json.dumps(value)}" for key, value in values.items())]


@dataclass(frozen=True, kw_only=True)
class SkyRLTrainStageConfig(SkyRLStageConfig, TrainConfig):
    """Input of xp.backends.skyrl.worker.train."""

    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""

    def with_steps(self, steps: int) -> Self:
        """Returns a copy with this number of rollout steps."""
        others = (text for text in self.native_keys if not text.startswith(f"{STEPS_KEY}="))
        return replace(self, steps=steps, native_keys=(*others, f"{STEPS_KEY}={steps}"))


@dataclass(frozen=True, kw_only=True)
class SkyRLSftConfig(SkyRLStageConfig, SftConfig):
    """Input of xp.backends.skyrl.worker.sft."""

    arguments: Mapping[str, Any]
    """Further arguments of SFTConfig."""
