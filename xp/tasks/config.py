"""Configuration of the prepare stage, as one frozen value: made by the control plane, read by the stage's program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from xp.envs.config import Chat, EnvConfig, EpisodeConfig


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
class Reader:
    """Model that will read the prompts. It is no part of the set, only of the report on it."""

    model: str
    """Hugging Face id, directory, or the built model's place in the outputs."""
    max_prompt_tokens: int
    chat: Chat

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Reader:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError on anything else."""
        value = json.loads(text)
        return Reader(**value | {"chat": Chat.from_value(value["chat"])})


@dataclass(frozen=True)
class PrepareConfig:
    """Everything that the prepare stage needs to know. Holds no secret value."""

    members: Mapping[str, MemberConfig]
    allow_missing_fraction: float
    """Share of the selected tasks of any one environment that may be missing from a set."""
    concurrency: int
    """Sessions opened at the same time, over all environments."""
    store: str = "tasks"
    """The store, relative to the outputs root."""
    trains: bool = False
    """True if a training follows: a set without a task to train on is then refused."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> PrepareConfig:
        """Read what `to_json` wrote; raises KeyError, TypeError or ValueError on anything else."""
        value = json.loads(text)
        environments = EpisodeConfig.from_json(
            json.dumps({"members": {name: member["env"] for name, member in value["members"].items()}})
        )
        members = {name: _member(member, environments.members[name]) for name, member in value["members"].items()}
        return PrepareConfig(**value | {"members": members})


def _member(value: dict[str, Any], env: EnvConfig) -> MemberConfig:
    held_out = value["held_out"]
    return MemberConfig(
        **value
        | {
            "env": env,
            "train": Selection(**value["train"] | _tuples(value["train"], "splits", "indices")),
            "held_out": None if held_out is None else HeldOut(**held_out | _tuples(held_out, "indices")),
        }
    )


def _tuples(value: dict[str, Any], *names: str) -> dict[str, tuple[Any, ...] | None]:
    return {name: None if value[name] is None else tuple(value[name]) for name in names}
