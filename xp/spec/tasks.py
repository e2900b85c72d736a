"""Selection of the tasks that are trained on and of those that are held out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError

from xp.spec.section import (
    FORMS,
    MODULE_PATH,
    Count,
    CountOrZero,
    LocalPath,
    Section,
    WideSeed,
)


class Overlap(StrEnum):
    """Permission to train on held-out tasks as well."""

    FORBIDDEN = "forbidden"
    ALLOWED = "allowed"


def _as_names(value: Any) -> Any:
    """One name is a list of one."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise PydanticCustomError(
        "string_type", "Input should be the name of a split, or a list of names"
    )


def _as_written(names: tuple[str, ...]) -> Any:
    if len(names) == 1:
        return names[0]
    return list(names)


SplitNames = Annotated[tuple[str, ...], BeforeValidator(_as_names), PlainSerializer(_as_written)]
Share = Annotated[float, Field(ge=0, le=1)]
PassRate = tuple[Share, Share] | None
Indices = tuple[CountOrZero, ...] | None
BY_PASS_RATE: Final = "pass_rate"
"""Curriculum that draws tasks by their running pass rates."""


def _curriculum(value: Any) -> Any:
    """Returns a curriculum's name, None for `none`; raises ValueError for another text."""
    if value is None or value == "none":
        return None
    if value == BY_PASS_RATE or (isinstance(value, str) and re.fullmatch(MODULE_PATH, value)):
        return value
    raise ValueError(
        f"{value!r} is no curriculum; set none, {BY_PASS_RATE}, or a function of your own, which"
        f" {FORMS[MODULE_PATH]}"
    )


BOTH = "num_tasks and indices exclude each other: set one of them to null"


class SelectionSpec(Section):
    """The tasks to train on."""

    split: SplitNames
    """The environment's own split, or a list of several: one set, with the split as a column. Empty: the environment is
    only evaluated on, and no training starts with it alone."""
    num_tasks: Count | None
    """Number of tasks. None means all that are not held out."""
    indices: Indices
    """Exactly these positions within the one split; excludes num_tasks."""
    shuffle: bool
    """Draws num_tasks at random (by `seed`) instead of from the front."""

    seed: WideSeed
    profile: LocalPath | None
    """Evaluation of the training tasks (its directory, or its name): `python -m xp tasks profile`."""
    pass_rate: PassRate
    """Trains only on tasks whose share of passed tries in `profile` lies within these bounds, both included."""
    easy_first: bool
    """Orders the tasks by their pass rate in `profile`, from the highest to the lowest."""
    curriculum: Annotated[str | None, BeforeValidator(_curriculum)]
    """Rule that draws each rollout step's tasks from the rewards of earlier steps: `pass_rate`, or
    `package.module:function` of your own (see xp.tasks.curriculum). None, or `none`, means the fixed order."""
    curriculum_bounds: tuple[Share, Share]
    """curriculum=pass_rate: lowest and highest running pass rate of the tasks that are drawn, both included."""
    curriculum_exploration: Share
    """curriculum=pass_rate: share of the places of tasks that were not tried, or are outside the bounds."""
    curriculum_forget: Count | None
    """curriculum=pass_rate: a task is not drawn any more when all its episodes have passed in this many groups in a
    row. None means never."""

    def faults(self) -> Iterator[str]:
        if self.num_tasks is not None and self.indices is not None:
            yield BOTH
        if self.profile is None and (self.pass_rate is not None or self.easy_first):
            yield (
                "pass_rate and easy_first need profile, an evaluation of the training tasks: python -m xp tasks profile"
                " makes one"
            )
        if self.pass_rate is not None and self.pass_rate[0] > self.pass_rate[1]:
            yield "pass_rate is [lowest, highest], two shares from 0 to 1"
        if self.curriculum_bounds[0] > self.curriculum_bounds[1]:
            yield "curriculum_bounds is [lowest, highest], two shares from 0 to 1"
        if self.profile is not None and (self.indices is not None or self.shuffle):
            yield "profile selects tasks by their pass rate: set indices to null and shuffle to false"
        if self.profile is not None and len(self.split) != 1:
            yield "profile supports one training split: name one in split"
        if self.indices is not None and len(self.split) > 1:
            yield "indices are positions within one split, but there are several splits: use num_tasks"
        if len(set(self.split)) < len(self.split):
            yield "split has one name twice"


class HeldOutSpec(Section):
    """The tasks to evaluate on: a split of the environment's own, or a share of the training split."""

    split: str | None
    """Split of the held-out tasks.

    None: the first of test, validation, eval, dev that the environment has, else a share of the training split.
    The name of a training split means a share of it.
    """
    fraction: Annotated[float, Field(gt=0, lt=1)]
    """Share of the training split, chosen by a hash of each task; not used with a split of its own."""
    num_tasks: Count | None
    """Number of tasks: at most this many of a share, exactly this many of a split of its own. None means all."""
    indices: Indices
    """Exactly these positions within `split`; excludes num_tasks."""
    shuffle: bool
    """Draws num_tasks of an own split at random (by `seed`) instead of from the front."""
    seed: WideSeed
    """Seed of that draw and of the hash: another one gives another share. The run's seed has no part in it."""
    overlap: Overlap
    """`allowed`: training leaves held-out tasks in, and every figure is labelled so."""

    @property
    def may_overlap(self) -> bool:
        """Returns whether held-out tasks may be training tasks too."""
        return self.overlap is Overlap.ALLOWED

    def faults(self) -> Iterator[str]:
        if self.num_tasks is not None and self.indices is not None:
            yield BOTH
        if self.indices is not None and self.split is None:
            yield "indices are positions within a split: set split too"
