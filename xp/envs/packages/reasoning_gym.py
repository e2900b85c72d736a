"""`provider: reasoning_gym`: procedural tasks of the package reasoning-gym, scored by its own datasets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from xp.envs.packages.hosted import HostedProvider

MOST_TASKS: Final = 500_000_000
"""Largest number of tasks of a split, and largest seed: the seeds of training and test tasks are a billion apart."""


class AnswerPlace(StrEnum):
    """Part of the model's message that is the answer."""

    TAGGED = "tagged"
    """Between the last `<answer>` and `</answer>`, by the package's own `extract_answer`; without them no answer."""
    WHOLE = "whole"
    """The whole message, without the spaces around it."""


def _as_list(given: Any) -> Any:
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else given


class Options(BaseModel):
    """`env.options` of `provider: reasoning_gym`; conf/env/reasoning_gym.yaml has the defaults."""

    dataset: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    """Names of datasets; several are mixed by the package's own composite."""
    weights: dict[str, Annotated[float, Field(gt=0)]]
    """Share of each dataset in the mixture, relative to the others; 1 for one that is not named."""
    level: Annotated[int, Field(ge=0)] | None
    """Difficulty, on every attribute of each dataset's own curriculum; None: the datasets' defaults."""
    config: dict[str, dict[str, Any]]
    """Fields of a dataset's own configuration, by its name; they win over `level`."""
    num_train: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    num_test: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    seed: Annotated[int, Field(ge=0, le=MOST_TASKS)]
    """Seed of the training tasks. No training task has a seed of a task of the split `test`."""
    prompt: str | None
    """Name of the package's own system prompt (`default`, `simple`, `direct`, ...); None: the question alone."""
    answer: AnswerPlace

    @model_validator(mode="after")
    def _names_agree(self) -> Options:
        if len(set(self.dataset)) != len(self.dataset):
            raise ValueError(f"dataset={','.join(self.dataset)}: a dataset is named twice")
        for field, named in (("weights", self.weights), ("config", self.config)):
            if strange := sorted(set(named) - set(self.dataset)):
                raise ValueError(f"{field} names {', '.join(strange)}, and dataset is {','.join(self.dataset)}")
        for name, fields in self.config.items():
            if taken := sorted({"seed", "size"} & set(fields)):
                raise ValueError(f"config.{name}.{taken[0]}: it follows from seed, num_train and num_test")
        return self


class ReasoningGymProvider(HostedProvider):
    """See xp.envs.packages.hosted."""

    Options = Options
    hosted = "xp.envs.packages.reasoning_gym_tasks:ReasoningGymTasks"
    package = "reasoning-gym==0.1.25"
