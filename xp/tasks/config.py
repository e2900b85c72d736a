"""Configuration of the prepare stage: written by the control plane, read by the stage's program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from xp.envs.config import Chat, EnvConfig
from xp.lib.codec import JsonFile


class Purpose(StrEnum):
    """Purpose of a task."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Selection:
    """Selection of the training tasks."""

    splits: tuple[str, ...]
    """Names of the environment's splits; several become one set."""
    num_tasks: int | None = None
    """Number of tasks; None: all that are not held out."""
    indices: tuple[int, ...] | None = None
    """Positions of the tasks within the one split, in this order; excludes num_tasks."""
    shuffle: bool = False
    """Whether num_tasks tasks are drawn at random (by `seed`); otherwise the first ones are taken."""
    seed: int = 0
    profile: str | None = None
    """Source of the pass rates that selected `indices`; for the record only."""


@dataclass(frozen=True)
class HeldOut:
    """Selection of the held-out tasks."""

    split: str | None = None
    """Name of the split; None: the environment's own split for evaluation, else a share of the training splits. The
    name of a training split means a share of it."""
    fraction: float = 1.0
    """Size of that share; 1: everything."""
    num_tasks: int | None = None
    """Number of tasks: at most this many of a share, exactly this many of a split of its own; None: all."""
    indices: tuple[int, ...] | None = None
    """Positions of the tasks within the split, in this order; excludes num_tasks."""
    shuffle: bool = False
    """Whether num_tasks tasks of a split of its own are drawn at random (by `seed`), instead of the first ones."""
    seed: int = 0
    """Seed of that draw, and of the hash of a share."""
    may_overlap: bool = False
    """True if held-out tasks are also training tasks."""


@dataclass(frozen=True)
class MemberConfig:
    """One environment of the mixture, with the selection of its tasks."""

    env: EnvConfig
    train: Selection
    held_out: HeldOut | None
    """Held-out tasks; None: there are none."""
    weight: float
    source: str | None = None
    """Digest of the local code of the tasks (`xp.tasks.request.source_digest`); None: there is no local code."""


@dataclass(frozen=True)
class Reader(JsonFile):
    """Model for the report on prompt lengths; it does not change the task set."""

    SORTS_KEYS = True
    model: str
    """Hugging Face id, directory, or the built model's path in the outputs."""
    max_prompt_tokens: int
    chat: Chat


@dataclass(frozen=True)
class PrepareConfig(JsonFile):
    """Input of the prepare stage; without secret values."""

    SORTS_KEYS = True
    members: Mapping[str, MemberConfig]
    allow_missing_fraction: float
    """Largest share of an environment's selected tasks that may be missing from a set."""
    concurrency: int
    """Largest number of concurrent sessions, over all environments."""
    store: str = "tasks"
    """Path of the store, relative to the outputs root."""
    trains: bool = False
    """True if a training follows; a set without training tasks is then refused."""
