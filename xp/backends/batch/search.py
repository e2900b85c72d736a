"""Legal batch shapes near an illegal one, those with the smallest change first."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from xp.backends.batch.constraint import Constraint, Tier, broken
from xp.backends.batch.shape import FIELDS, BatchShape
from xp.spec.section import MOST_SIZE

MOST = 3
"""Largest number of proposals."""
MOST_SEEN = 20_000
"""Largest number of shapes of a search, a fraction of a second."""
NEAR = 512
"""Distance in which every value is tried; four times the value if that is nearer."""
FAR = 2**14
"""Largest number of accelerators and updates together up to which every value is tried that is enough for each."""
NEAR_MICRO = 1024
"""Distance from a micro-batch in which another is looked for."""
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

Changes = dict[str, int]
"""Field of BatchShape -> its other value."""


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

    The cost is the sum of weight x (1/4 + |log2(new / old)|) over the numbers that change. Shapes are tried in the
    order of their cost, until `MOST_SEEN` of them were tried or wait for it.
    """
    by_tier = sorted(constraints, key=lambda one: one.tier)
    is_misplaced = any(constraint.tier is Tier.PLACEMENT for constraint in broken(batch, constraints))
    todo = _Queue(batch)
    for name in _placed(batch) if is_misplaced else ("micro", *SCHEDULE):
        todo.add(UNCHANGED, name, _values(batch, name))
    kept: list[Changes] = []
    proposals: list[Proposal] = []
    for one in todo.cheapest_first(MOST_SEEN):
        if any(other.items() <= one.changes.items() for other in kept):
            continue
        changed = replace(batch, **one.changes)  # type: ignore[arg-type]
        fault = next((constraint.tier for constraint in by_tier if not constraint.holds(changed)), None)
        if fault is not None:
            _try_further(todo, one, changed, fault)
            continue
        kept.append(one.changes)
        proposals.append(Proposal({FIELDS[name]: value for name, value in one.changes.items()}, one.cost))
        if len(proposals) == MOST:
            break
    return proposals


class _Changed(NamedTuple):
    """Changes of a batch shape, in order of their cost; of those with the same cost, fewer changes come first."""

    cost: float
    num_changes: int
    text: str
    changes: Changes


UNCHANGED = _Changed(0.0, 0, "", {})


class _Queue:
    """Changes of a batch shape that are to be tried."""

    def __init__(self, batch: BatchShape) -> None:
        self.batch, self._num_seen = batch, 0
        self._waiting: list[tuple[_Changed, _Changed, str, Iterator[int]]] = []
        """A heap of changes, each with those that it changes further, in which field, and the field's other values."""

    def add(self, before: _Changed, name: str, values: Iterable[Sequence[int]]) -> None:
        """Add changes with one more number.

        Args:
            before: the changes.
            name: field of the number.
            values: its values, in ascending lists; the present one is left out.
        """
        now = getattr(self.batch, name)
        for ascending in values:
            self._add_next(before, name, reversed(ascending[: bisect_left(ascending, now)]))
            self._add_next(before, name, iter(ascending[bisect_right(ascending, now) :]))

    def cheapest_first(self, most: int) -> Iterator[_Changed]:
        """Yields changes until so many were seen; others may be added meanwhile."""
        while self._waiting and self._num_seen < most:
            one, before, name, rest = heapq.heappop(self._waiting)
            yield one
            self._add_next(before, name, rest)

    def _add_next(self, before: _Changed, name: str, rest: Iterator[int]) -> None:
        if (value := next(rest, None)) is None:
            return
        self._num_seen += 1
        cost = before.cost + WEIGHTS[name] * (0.25 + abs(math.log2(value / getattr(self.batch, name))))
        text = f"{before.text} {FIELDS[name]}={value}"
        found = _Changed(cost, before.num_changes + 1, text, {**before.changes, name: value})
        heapq.heappush(self._waiting, (found, before, name, rest))


def _try_further(todo: _Queue, before: _Changed, changed: BatchShape, fault: Tier) -> None:
    """Add the shapes that change one number more than an illegal one.

    Args:
        todo: where they are added.
        before: changes of the illegal shape.
        changed: the illegal shape.
        fault: tier of the constraint that it violates; those of earlier tiers hold.
    """
    if before.num_changes > 1:
        return
    (name,) = before.changes
    if name in PLACEMENT:
        names = _placed(todo.batch)
        for other in names[names.index(name) + 1 :]:
            todo.add(before, other, _values(todo.batch, other))
        for other in () if fault is Tier.PLACEMENT else ("micro", *SCHEDULE):
            todo.add(before, other, _values(changed, other))
    elif fault is Tier.MICRO and name != "micro" and not changed.is_packed:
        todo.add(before, "micro", [[_best_micro(changed)]])


def _placed(batch: BatchShape) -> list[str]:
    return [name for name in PLACEMENT if getattr(batch, name) is not None]


def _values(batch: BatchShape, name: str) -> Iterator[Sequence[int]]:
    """Ascending values: for a schedule up to four times as much, or enough for every rank; for a placement divisors."""
    if name == "engine_accelerators":
        yield range(1, min(batch.per_node, MOST_SIZE + 1))
        yield range(batch.per_node, min(batch.accelerators, MOST_SIZE + 1), batch.per_node)
    elif name in PLACEMENT:
        yield _divisors(batch.accelerators)
    else:
        now, whole = getattr(batch, name), batch.ranks * batch.updates
        most = min(4 * now, now + NEAR)
        if whole <= FAR:
            most = max(most, whole)
        yield range(max(2 if name == "group" else 1, now - NEAR), min(most, MOST_SIZE) + 1)
        if most < whole and name in ("prompts", "group"):
            # Values with the same number of episodes for each rank; all others would be too many.
            unit = batch.updates * (batch.ranks // math.gcd(batch.ranks, batch.episodes // now))
            yield range(unit * (most // unit + 1), min(whole, MOST_SIZE) + 1, unit)


@lru_cache(maxsize=8)
def _divisors(number: int) -> tuple[int, ...]:
    """Divisors of a number that are legal sizes, ascending."""
    small = [n for n in range(1, min(math.isqrt(number), MOST_SIZE) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if number // n <= MOST_SIZE and n * n != number]
    return (*small, *large)


def _best_micro(batch: BatchShape) -> int:
    """The divisor of a rank's share that is nearest to the requested micro-batch.

    Between 1 and the whole share, only the divisors within `NEAR_MICRO` are known.
    """
    share, micro = max(1, batch.episodes // (batch.updates * batch.ranks)), batch.micro
    most = min(share, 4 * micro)
    near = range(max(1, micro - NEAR_MICRO), min(most, micro + NEAR_MICRO) + 1)
    divisors: set[int] = {1, *(n for n in near if share % n == 0), *((share,) if share == most else ())}
    return min(divisors, key=lambda n: (abs(math.log2(n / micro)), n))
