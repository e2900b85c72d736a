"""The rule that selected the held-out tasks, with its result, for the manifest and for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

FEW: Final = 30
"""A share of fewer tasks is small for an evaluation: the interval of a pass rate of 0.5 is 0.36 wide at 30."""


class Rule(StrEnum):
    """Source of an environment's held-out tasks."""

    SPLIT = "split"
    """A split of the environment's own."""
    SHARE = "share"
    """A share of the training split, by a hash of each task."""
    NOTHING = "nothing"


class Identity(StrEnum):
    """Part of a task from which the hash is computed."""

    CONTENT = "content"
    """The environment's description of the task, if it lists its tasks."""
    INDEX = "index"
    """The task's position, if the environment only counts its tasks, or has too many to list."""


@dataclass(frozen=True)
class HeldOutRecord:
    """Held-out tasks of one environment."""

    rule: Rule
    splits: tuple[str, ...] = ()
    """Splits of the held-out tasks."""
    train_splits: tuple[str, ...] = ()
    """Splits of the training tasks. Empty means that the environment has only splits for evaluation."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Split -> number of its tasks, for requested splits."""
    num_held_out: int = 0
    num_train: int = 0
    identity: Identity | None = None
    """Source of the hash for a share. None means that there is no share."""
    num_trained_on: int = 0
    """Number of held-out tasks that are trained on as well."""
    unused: tuple[str, ...] = ()
    """Splits of the environment that are for nothing."""

    def line(self) -> str:
        """One line with the rule and its numbers."""
        if self.rule is Rule.NOTHING:
            return f"nothing; {self.num_train:,} tasks to train on"
        total = sum(self.sizes.get(split, 0) for split in self.splits)
        where = f"{self.num_held_out:,} of {total:,} tasks of {named(self.splits)}"
        if self.rule is Rule.SHARE:
            where += f", chosen by the hash of their {self.identity}"
            if self.num_held_out < FEW:
                where += (
                    f" (warning: means of fewer than {FEW} tasks are uncertain; see the interval)"
                )
        trained = f"{self.num_train:,} of {named(self.train_splits)} to train on"
        if not self.train_splits:
            trained = "there is no split to train on"
        elif self.num_trained_on:
            trained += f", {overlap_label(self.num_trained_on, self.num_held_out)}"
        return f"{where}; {trained}" + (f"; unused: {named(self.unused)}" if self.unused else "")


def overlap_label(num_trained_on: int, num_held_out: int) -> str:
    """Label of a result that is not measured on unseen tasks only; empty if it is."""
    which = f"{num_trained_on:,} of {num_held_out:,}"
    if num_trained_on == num_held_out:
        which = "all"
    return f"{which} evaluation tasks are trained on as well"


def named(splits: tuple[str, ...]) -> str:
    """Text such as `split train` or `splits train and extra`."""
    return f"split{'s' if len(splits) > 1 else ''} {' and '.join(splits)}"


def evaluation_only(record: HeldOutRecord | None) -> str:
    """Message about an environment without training tasks, with remedies.

    Args:
        record: record of any task set of the environment. None means that its splits are not known yet.
    """
    what = "the environment is"
    split = "NAME"
    if record is not None and record.splits:
        what = f"the environment has only {named(record.splits)}, which is"
        split = record.splits[0]
    return (
        f"nothing to train on: {what} for evaluation only\nplay it by `python -m xp eval` with the same words and"
        f" model=NAME, or set env.train.split={split}, which trains on it all the same"
    )
