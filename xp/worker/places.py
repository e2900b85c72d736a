"""Places of a run below the outputs root, and of the models that it begins with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xp.lib.models.files import pinned_place
from xp.spec import Distill, Model, Reference, RunSpec

NUM_UPDATES: Final = "num_updates.json"
"""File beside a fine-tuning's configuration with the number of its updates."""


@dataclass(frozen=True)
class RunPaths:
    """Paths of one attempt, relative to the outputs root."""

    run: str
    """Directory of the run, `runs/<run id>`, shared by all attempts."""
    attempt: int
    tasks: str
    """Directory of the canonical task set."""

    def stage(self, name: str) -> str:
        """Directory of a stage in this attempt."""
        return f"{self.run}/attempt_{self.attempt}/{name}"

    @property
    def checkpoints(self) -> str:
        return f"{self.run}/checkpoints"

    @property
    def model(self) -> str:
        """Hugging Face directory of the trained model."""
        return f"{self.run}/model"

    @property
    def sft(self) -> str:
        """Hugging Face directory of the fine-tuned model, from which the training starts."""
        return f"{self.run}/sft"

    @property
    def metrics(self) -> str:
        return f"{self.run}/metrics.jsonl"


def model_place(model: Model) -> str:
    """Location of the untrained policy: a directory, a hub's id, or where the model stage puts it in the outputs."""
    if model.revision is None:
        return model.path
    return pinned_place(model.path, model.revision)


def teacher_place(distill: Distill) -> str:
    """Location of a loaded teacher: a directory, a hub's id, or where the teacher stage puts it; of a server its name
    there."""
    if distill.revision is None:
        return distill.teacher
    return pinned_place(distill.teacher, distill.revision)


def start_place(spec: RunSpec) -> str:
    """Location of the weights, with their tokenizer, from which a fine-tuning starts, or else the training."""
    return spec.training.initial_checkpoint or model_place(spec.model)


def policy_start(spec: RunSpec, places: RunPaths) -> str:
    """Location of the weights from which the training starts."""
    if spec.sft.data is None:
        return start_place(spec)
    return places.sft


def reference_place(spec: RunSpec, places: RunPaths) -> str:
    """Location of the model to which the KL penalty is relative."""
    if spec.training.reference is Reference.SFT:
        return places.sft
    return model_place(spec.model)
