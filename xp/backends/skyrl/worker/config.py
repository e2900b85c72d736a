"""Configuration of SkyRL's stage programs: frozen values, written by render above the wall. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from xp.diagnosis.live import LiveRules
from xp.envs.config import Chat
from xp.tasks.length import Length
from xp.tasks.rounds import Rounds
from xp.worker.best import BestRule

STEPS_KEY = "trainer.max_training_steps"
REFERENCE_KEY = "trainer.ref.model.path"
OWN_ESTIMATOR = "xp"
"""Name in SkyRL's registry of what worker/advantages.py computes; its parser takes registered ones only."""


@dataclass(frozen=True)
class SkyRLSampling:
    """Sampling parameters of the policy."""

    temperature: float
    """0: greedy."""
    top_p: float
    top_k: int | None
    max_prompt_tokens: int
    max_tokens_per_turn: int
    max_response_tokens: int
    """All turns of an episode, tool results included."""
    seed: int


@dataclass(frozen=True)
class SkyRLStageConfig:
    """Configuration that training and evaluation share. Paths are relative to the working directory (the outputs)."""

    attempt: int
    run: str
    stage_dir: str
    tasks: str
    """Directory of the canonical task set."""
    metrics: str
    """The run's metrics.jsonl."""
    num_threads: int
    num_workers: int
    """Processes that train."""
    chat: Chat
    sampling: SkyRLSampling
    max_void_fraction: float
    pass_threshold: float
    """Smallest reward that is a pass."""
    on_nonfinite: str
    """A value of xp.episode.finite.OnNonfinite."""
    max_logprob_gap: float | None
    """Largest allowed gap of a step (xp.worker.logprob_gap)."""
    upload_as: str | None
    """Run name under which trajectories are uploaded to OpenReward; None: they are not."""
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
class SkyRLTrainStageConfig:
    """Input of xp.backends.skyrl.worker.train."""

    common: SkyRLStageConfig
    base_model: str
    """Hugging Face id or directory of the model; what the KL penalty is relative to."""
    initial_checkpoint: str | None
    """Directory whose weights and tokenizer training starts from; None: those of `base_model`."""
    model_dir: str
    """Directory of the trained model, in Hugging Face's format."""
    train_data: str
    """Parquet that the stage writes for SkyRL: steps x `prompts_per_step` rows in the order of training, which
    is one epoch of SkyRL's; also in common.paths."""
    held_out_data: str
    """Parquet of held-out tasks that the stage writes; also in common.paths."""
    length: Length
    prompts_per_step: int
    group_size: int
    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""
    shuffle: bool
    """True if xp's order of tasks is random. SkyRL's own loader must not shuffle in addition."""
    mask_truncated: bool
    during: Rounds | None
    """Rounds of an evaluation while training; None: there is none."""
    estimator: str
    """In xp's words: whose advantages are wanted."""
    advantage_fn: str | None
    """`package.module:function` of the user's own."""
    best: BestRule | None
    """Rule on the evaluations while training."""
    symptoms: LiveRules

    @property
    def start_model(self) -> str:
        """Model that training starts from."""
        return self.initial_checkpoint or self.base_model

    @property
    def num_steps(self) -> int:
        """Rollout steps; call only where they are given or settled."""
        return self.length.steps

    def with_length(self, length: Length) -> SkyRLTrainStageConfig:
        """Returns a copy with this number of rollout steps."""
        others = (text for text in self.common.overrides if not text.startswith(f"{STEPS_KEY}="))
        common = replace(self.common, overrides=(*others, f"{STEPS_KEY}={length.steps}"))
        return replace(self, length=length, common=common)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> SkyRLTrainStageConfig:
        value = json.loads(text)
        during = None if value["during"] is None else Rounds(**value["during"])
        best = None if value["best"] is None else BestRule(**value["best"])
        parts = {"common": _common(value["common"]), "during": during, "length": Length(**value["length"])}
        return SkyRLTrainStageConfig(
            **value | parts | {"best": best, "symptoms": LiveRules.from_value(value["symptoms"])}
        )


@dataclass(frozen=True)
class SkyRLEvaluateConfig:
    """Input of xp.backends.skyrl.worker.evaluate."""

    common: SkyRLStageConfig
    models: Mapping[str, str]
    """`before` and `after` -> model directory, in the order in which they are played."""
    held_out_data: str
    """Parquet of held-out tasks that the stage writes; also in common.paths."""
    rounds: Rounds
    batch_size: int
    """Episodes played at the same time."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> SkyRLEvaluateConfig:
        value = json.loads(text)
        return SkyRLEvaluateConfig(**value | {"common": _common(value["common"]), "rounds": Rounds(**value["rounds"])})


def _place(model: str, root: Path) -> str:
    directory = root / model
    return str(directory) if directory.is_dir() else model


def _value(key: str, path: str) -> str | list[str]:
    """`data.train_data` and `data.val_data` are lists of files."""
    return [path] if key.startswith("data.") else path


def _common(value: dict[str, Any]) -> SkyRLStageConfig:
    listed = {name: tuple(value[name]) for name in ("overrides", "model_keys")}
    parts = {"sampling": SkyRLSampling(**value["sampling"]), "chat": Chat.from_value(value["chat"])}
    return SkyRLStageConfig(**value | parts | listed)
