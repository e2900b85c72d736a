"""Configuration of the prepare stage, as one frozen value: made by the control plane, read by the stage's program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from xp.codec import JsonFile
from xp.envs.config import Chat, EnvConfig


class Purpose(StrEnum):
    """Purpose of a task."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Selection:
    """Tasks that are trained on."""

    splits: tuple[str, ...]
    """The environment's own; several are one set."""
    num_tasks: int | None = None
    """Number of tasks; None: all that are not held out."""
    indices: tuple[int, ...] | None = None
    """Exactly these positions within the one split, in this order; excludes num_tasks."""
    shuffle: bool = False
    """True if num_tasks are drawn at random (by `seed`) instead of from the front."""
    seed: int = 0


@dataclass(frozen=True)
class HeldOut:
    """Tasks that are evaluated on."""

    split: str | None = None
    """None: the environment's own split for it, else a share of the training splits; so is the name of one of them."""
    fraction: float = 1.0
    """Fraction of that share; 1: all of it."""
    num_tasks: int | None = None
    """At most so many of a share, or exactly so many of an own split; None: all."""
    indices: tuple[int, ...] | None = None
    """Exactly these positions within the split, in this order; excludes num_tasks."""
    shuffle: bool = False
    """True if num_tasks of an own split are drawn at random (by `seed`) instead of from the front."""
    seed: int = 0
    """Seed of that draw, and of the share's hash."""
    may_overlap: bool = False
    """True if held-out tasks stay among the training tasks."""


@dataclass(frozen=True)
class MemberConfig:
    """One environment of the mixture and the tasks that are wanted from it."""

    env: EnvConfig
    train: Selection
    held_out: HeldOut | None
    """None: nothing is held out."""
    weight: float
    system_prompt: str | None
    source: str | None = None
    """Digest of the local code that makes the tasks (`xp.tasks.request.source_digest`); None: there is none."""


@dataclass(frozen=True)
class Reader(JsonFile):
    """Model that will read the prompts. It is no part of the set, only of the report on it."""

    SORTS_KEYS = True
    model: str
    """Hugging Face id, directory, or the built model's place in the outputs."""
    max_prompt_tokens: int
    chat: Chat


@dataclass(frozen=True)
class PrepareConfig(JsonFile):
    """Everything that the prepare stage needs to know. Holds no secret value."""

    SORTS_KEYS = True
    members: Mapping[str, MemberConfig]
    allow_missing_fraction: float
    """Share of the selected tasks of any one environment that may be missing from a set."""
    concurrency: int
    """Sessions opened at the same time, over all environments."""
    store: str = "tasks"
    """The store, relative to the outputs root."""
    trains: bool = False
    """True if a training follows: a set without a task to train on is then refused."""
