"""Configuration of the prepare stage: written by the control plane, read by the stage's program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from xp.envs.config import EnvConfig
from xp.lib.codec import JsonFile
from xp.spec import Preparation, RunSpec, SelectionSpec


class Purpose(StrEnum):
    """Purpose of a task."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class MemberConfig:
    """One environment of the mixture, with what is known of its tasks."""

    env: EnvConfig
    chosen: tuple[int, ...] | None = None
    """Positions of the training tasks that a profile selected. None means no profile selects them."""
    source: str | None = None
    """Digest of the local code of the tasks (`xp.tasks.request.source_digest`). None means that there is no local
    code."""

    @property
    def train(self) -> SelectionSpec:
        """Selection of the training tasks."""
        if self.chosen is None:
            return self.env.train
        return self.env.train.model_copy(update={"num_tasks": None, "indices": self.chosen})


@dataclass(frozen=True)
class Reader(JsonFile):
    """The run that reads the tasks: the model for the report on prompt lengths, and the length of the training.

    It does not change the task set."""

    SORTS_KEYS = True
    place: str
    """Hugging Face id, directory, or the built model's path in the outputs."""
    spec: RunSpec
    trains: bool = False
    """True if a training follows, and not a fine-tuning alone: its epochs need tasks for a step."""


@dataclass(frozen=True)
class PrepareConfig(JsonFile):
    """Input of the prepare stage; without secret values."""

    SORTS_KEYS = True
    members: Mapping[str, MemberConfig]
    preparation: Preparation
    store: str = "tasks"
    """Path of the store, relative to the outputs root."""
    trains: bool = False
    """True if a training follows; a set without training tasks is then refused."""
