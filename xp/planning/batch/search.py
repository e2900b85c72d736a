"""Legal batch shapes near an illegal one, those with the smallest change first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from xp.planning.batch.constraint import Constraint, Tier, broken
from xp.planning.batch.shape import FIELDS, BatchShape

MOST = 3
"""Largest number of proposals."""
MOST_TRIED = 100_000
"""Largest number of shapes that are tried: about two seconds."""
WEIGHTS: Mapping[str, float] = {
    # The micro-batch and the engines' layout change only speed and memory.
    "micro": 1.0,
    "engine_tensor": 1.0,
    "engine_accelerators": 1.5,
    "tensor": 2.0,
    "pipeline": 2.0,
    "context": 2.0,
    "expert": 2.0,
    # These three change the experiment: the noise of an update, the number of updates, the baseline.
    "updates": 3.0,
    "prompts": 4.0,
    "group": 6.0,
}
"""Cost of doubling or halving a number; any change costs a quarter of it in addition."""
SCHEDULE = ("updates", "prompts", "group")
PLACEMENT = ("tensor", "pipeline", "context", "expert", "engine_tensor", "engine_accelerators")


@dataclass(frozen=True)
class Proposal:
    """A legal batch shape, as overrides."""

    changes: dict[str, int]
    """Key of the spec -> value."""
    cost: float

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.changes.items())


def nearest_legal(batch: BatchShape, constraints: tuple[Constraint, ...]) -> list[Proposal]:
    """Up to three legal batch shapes with one or two changed numbers, without those that change more than another does.

    The cost is the sum of weight x (1/4 + |log2(new / old)|) over the numbers that change.
    """
    found: dict[tuple[tuple[str, int], ...], Proposal] = {}
    is_misplaced = any(constraint.tier is Tier.PLACEMENT for constraint in broken(batch, constraints))
    for changes in islice(_placements(batch) if is_misplaced else _schedules(batch), MOST_TRIED):
        if _is_legal(batch, changes, constraints):
            cost = sum(WEIGHTS[name] * (0.25 + abs(math.log2(new / old))) for name, old, new in _steps(batch, changes))
            proposal = Proposal({FIELDS[name]: value for name, value in changes.items()}, cost)
            found[tuple(sorted(changes.items()))] = proposal
    kept: list[Proposal] = []
    for proposal in sorted(found.values(), key=lambda one: (one.cost, len(one.changes), str(one))):
        if not any(one.changes.items() <= proposal.changes.items() for one in kept):
            kept.append(proposal)
        if len(kept) == MOST:
            break
    return kept


def _changed(batch: BatchShape, name: str, value: Any) -> BatchShape:
    return replace(batch, **{name: value})


def _steps(batch: BatchShape, changes: Mapping[str, Any]) -> Iterator[tuple[str, int, int]]:
    return ((name, getattr(batch, name), value) for name, value in changes.items())


def _is_legal(batch: BatchShape, changes: Mapping[str, Any], constraints: tuple[Constraint, ...]) -> bool:
    candidate = replace(batch, **changes)
    return all(constraint.holds(candidate) for constraint in constraints)


def _schedules(batch: BatchShape) -> Iterator[dict[str, Any]]:
    """Other numbers of episodes on the same placement; the micro-batch is adapted if necessary."""
    for name in ("micro", *SCHEDULE):
        for value in _values(batch, name):
            yield {name: value}
            micro = _best_micro(_changed(batch, name, value))
            if name != "micro" and not batch.is_packed and micro != batch.micro:
                yield {name: value, "micro": micro}


def _placements(batch: BatchShape) -> Iterator[dict[str, Any]]:
    """Other placements, with a fitting number of episodes if the given one does not fit."""
    names = [name for name in PLACEMENT if getattr(batch, name) is not None]
    for name in names:
        for value in _values(batch, name):
            yield {name: value}
            moved = _changed(batch, name, value)
            for changes in _schedules(moved):
                if len(changes) == 1:
                    yield {name: value, **changes}
            for other in names[names.index(name) + 1 :]:
                yield from ({name: value, other: count} for count in _values(batch, other))


def _values(batch: BatchShape, name: str) -> Iterator[int]:
    """Other values: for a schedule up to four times as much, or enough for every rank; for a placement divisors."""
    now = getattr(batch, name)
    if name == "engine_accelerators":
        whole_nodes = range(batch.per_node, batch.accelerators, batch.per_node)
        values = [*range(1, batch.per_node), *whole_nodes]
    elif name in PLACEMENT:
        values = [n for n in range(1, batch.accelerators + 1) if batch.accelerators % n == 0]
    else:
        least = 2 if name == "group" else 1
        most = max(min(4 * now, now + 512), batch.ranks * batch.updates)
        values = list(range(max(least, now - 512), most + 1))
    yield from (value for value in values if value != now)


def _best_micro(batch: BatchShape) -> int:
    """The divisor of a rank's share that is nearest to the requested micro-batch."""
    share = max(1, batch.episodes // (batch.updates * batch.ranks))
    divisors = [n for n in range(1, min(share, 4 * batch.micro) + 1) if share % n == 0]
    return min(divisors, key=lambda n: (abs(math.log2(n / batch.micro)), n))
