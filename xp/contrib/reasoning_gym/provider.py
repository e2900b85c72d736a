"""`provider: reasoning_gym`: procedural tasks of the package reasoning-gym, scored by its own datasets."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from xp.contrib.hosted import HostedProvider

MOST_TASKS: Final = 500_000_000
"""Largest number of tasks of a split, and largest seed; seeds of training and test tasks differ by a billion."""


class AnswerPlace(StrEnum):
    """Part of the model's message that is the answer."""

    TAGGED = "tagged"
    """Text between the last `<answer>` and `</answer>`, by the package's `extract_answer`; without tags no answer."""
    WHOLE = "whole"
    """The whole message, without surrounding spaces."""


def _as_list(value: Any) -> Any:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    return value


class Options(BaseModel):
    """`env.options` of `provider: reasoning_gym`; conf/env/reasoning_gym.yaml has the defaults."""

    dataset: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    """Names of datasets; several are mixed by the package's composite dataset."""
    weights: dict[str, Annotated[float, Field(gt=0)]]
    """Share of each dataset in the mixture, relative to the others; 1 if not given."""
    level: Annotated[int, Field(ge=0)] | None
    """Level of every attribute in each dataset's curriculum. None means the datasets' defaults."""
    config: dict[str, dict[str, Any]]
    """Fields of datasets' own configurations, by the datasets' names; they override `level`."""
    num_train: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    num_test: Annotated[int, Field(ge=1, le=MOST_TASKS)]
    seed: Annotated[int, Field(ge=0, le=MOST_TASKS)]
    """Seed of the training tasks; their seeds never overlap those of the split `test`."""
    prompt: str | None
    """Name of a system prompt of the package (`default`, `simple`, `direct`, ...). None means only the question."""
    answer: AnswerPlace

    @model_validator(mode="after")
    def _names_agree(self) -> Options:
        if len(set(self.dataset)) != len(self.dataset):
            raise ValueError(f"dataset={','.join(self.dataset)}: a dataset is named twice")
        for field, named in (("weights", self.weights), ("config", self.config)):
            unknown = sorted(set(named) - set(self.dataset))
            if unknown:
                raise ValueError(
                    f"{field} names {', '.join(unknown)}, and dataset is {','.join(self.dataset)}"
                )
        for name, fields in self.config.items():
            reserved = sorted({"seed", "size"} & set(fields))
            if reserved:
                raise ValueError(
                    f"config.{name}.{reserved[0]}: it follows from seed, num_train and num_test"
                )
        return self


class ReasoningGymProvider(HostedProvider):
    """See xp.contrib.hosted."""

    Options = Options
    hosted = "xp.contrib.reasoning_gym.tasks:ReasoningGymTasks"
    package = "reasoning-gym==0.1.25"
