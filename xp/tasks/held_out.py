"""Rule that decided the held-out tasks, and its result: recorded in the manifest, shown in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

OWN_SPLITS: Final = ("test", "validation", "eval", "dev")
"""Splits that are there to be evaluated on, in the order in which they are preferred."""


class Rule(StrEnum):
    """Source of an environment's held-out tasks."""

    SPLIT = "split"
    """A split of the environment's own."""
    SHARE = "share"
    """A share of the training split, by a hash of each task."""
    NOTHING = "nothing"


class Identity(StrEnum):
    """Part of a task that is hashed."""

    CONTENT = "content"
    """The environment's own description of it: the environment lists its tasks."""
    INDEX = "index"
    """Its position: the environment only counts its tasks, or has too many to list."""


@dataclass(frozen=True)
class HeldOutRecord:
    """Held-out tasks of one environment."""

    rule: Rule
    splits: tuple[str, ...] = ()
    """Splits of the held-out tasks."""
    train_splits: tuple[str, ...] = ()
    """Empty: the environment has only splits to evaluate on."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Tasks of every split that was asked for."""
    num_held_out: int = 0
    num_train: int = 0
    identity: Identity | None = None
    """Identity that a share is hashed by."""
    num_trained_on: int = 0
    """Held-out tasks that are trained on as well."""

    def line(self) -> str:
        """The rule and its figures in words."""
        if self.rule is Rule.NOTHING:
            return f"nothing; {self.num_train:,} tasks to train on"
        total = sum(self.sizes.get(split, 0) for split in self.splits)
        where = f"{self.num_held_out:,} of {total:,} tasks of {named(self.splits)}"
        if self.rule is Rule.SHARE:
            where += f", chosen by the hash of their {self.identity}"
        return f"{where}; {self._trained()}"

    def _trained(self) -> str:
        if not self.train_splits:
            return "there is no split to train on"
        text = f"{self.num_train:,} of {named(self.train_splits)} to train on"
        return f"{text}, {overlap_label(self.num_trained_on, self.num_held_out)}" if self.num_trained_on else text


def overlap_label(num_trained_on: int, num_held_out: int) -> str:
    """Says of a figure that it is no measure of tasks never seen."""
    which = "all" if num_trained_on == num_held_out else f"{num_trained_on:,} of {num_held_out:,}"
    return f"{which} evaluation tasks are trained on as well"


def named(splits: tuple[str, ...]) -> str:
    """`split train`, `splits train and extra`."""
    return f"split{'s' if len(splits) > 1 else ''} {' and '.join(splits)}"


def evaluation_only(record: HeldOutRecord | None) -> str:
    """Message on why no training starts with an environment that has nothing to train on, with the ways out.

    Args:
        record: of any task set of it; None: nobody has asked it yet.
    """
    what = "the environment is" if record is None else f"the environment has only {named(record.splits)}, which is"
    split = record.splits[0] if record is not None and record.splits else "NAME"
    return (
        f"nothing to train on: {what} there to be evaluated on\n`python -m xp evaluate` with the same words evaluates"
        f" the model of the spec; env.train.split={split} trains on it all the same"
    )
