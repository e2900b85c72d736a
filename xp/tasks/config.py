"""What the prepare stage is asked for, in one frozen value: made by the control plane, read by the stage's program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from xp.episode.config import EnvConfig, EpisodeConfig


class Purpose(StrEnum):
    """What a task is for."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Selection:
    """Which tasks of one split."""

    split: str
    num_tasks: int | None = None
    """How many; None: all of the split."""
    indices: tuple[int, ...] | None = None
    """Exactly these positions within the split, in this order; excludes num_tasks."""
    shuffle: bool = False
    """Whether num_tasks are drawn at random (by `seed`) instead of from the front."""
    seed: int = 0
    fraction: float | None = None
    """Share of the split, chosen by hash, that is held out; counts only where held-out and train name one split."""


@dataclass(frozen=True)
class MemberConfig:
    """One environment of the mix and the tasks that are wanted from it."""

    env: EnvConfig
    train: Selection
    held_out: Selection | None
    weight: float
    system_prompt: str | None
    source: str | None = None
    """Digest of the local code that makes the tasks (`xp.tasks.request.source_digest`); None: there is none."""


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
            "train": _selection(value["train"]),
            "held_out": None if held_out is None else _selection(held_out),
        }
    )


def _selection(value: dict[str, Any]) -> Selection:
    indices = value["indices"]
    return Selection(**value | {"indices": None if indices is None else tuple(indices)})
