"""Batch shapes: constraints on their numbers, the nearest legal shapes, and messages.

Each backend states its own constraints. If a constraint's `silent` is empty, the trainer itself refuses a violation.
Otherwise it continues with a different behaviour, which `silent` describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from itertools import islice
from typing import Any

from xp.fields.batch_shape import FIELDS, BatchShape, batch_shape
from xp.fields.field import Refusal
from xp.fields.shared import has_own_decoding, is_megatron
from xp.lib.text import counted
from xp.spec import RunSpec

MOST = 3
"""Largest number of proposals."""
MOST_TRIED = 100_000
"""Largest number of shapes that are tried: about two seconds."""
SCHEDULE = ("updates", "prompts", "group")
PLACEMENT = ("tensor", "pipeline", "context", "expert", "engine_tensor", "engine_accelerators")


class Tier(IntEnum):
    """Order of checks: constraints of a later tier have no meaning while one of an earlier tier is violated."""

    PLACEMENT = 0
    BATCH = 1
    MICRO = 2


@dataclass(frozen=True)
class Constraint:
    """A constraint on the batch shape."""

    tier: Tier
    field: str
    """Key of the spec that the message names."""
    formula: str
    holds: Callable[[BatchShape], bool]
    numbers: Callable[[BatchShape], str]
    """Values in the formula for a batch shape."""
    source: str
    silent: str = ""

    def fault(self, batch: BatchShape) -> str:
        """The violated formula, with the numbers of a batch shape."""
        silent = f"; the trainer does not check this: {self.silent}" if self.silent else ""
        return f"{self.formula}; got {self.numbers(batch)} ({self.source}){silent}"


Constraints = tuple[Constraint, ...]
Changes = dict[str, Any]
"""Fields of a batch shape with other values."""


def divides(part: int, whole: int) -> bool:
    return part > 0 and whole % part == 0


def fits(part: int, whole: int) -> bool:
    """Returns whether one of two numbers divides the other: heads are split over ranks, or copied to several."""
    return divides(part, whole) or divides(whole, part)


_on_placement = partial(Constraint, Tier.PLACEMENT)


def placement(source: str) -> Constraints:
    """Constraints on how accelerators are shared; the same on every backend."""
    return (
        _on_placement(
            "backend.engine.accelerators",
            "engine.accelerators must be less than accelerators_per_node x num_nodes",
            lambda s: s.training > 0,
            lambda s: f"{s.engine_accelerators} and {s.per_node} x {s.num_nodes}",
            source,
        ),
        _on_placement(
            "backend.engine.tensor_parallel",
            "the engines' accelerators must be divisible by engine.tensor_parallel",
            lambda s: divides(s.engine_tensor, s.generating),
            lambda s: f"{s.generating} and {s.engine_tensor}",
            source,
        ),
        _on_placement(
            "backend.parallel",
            "the accelerators that train must be divisible by tensor x pipeline x context",
            lambda s: s.training > 0 and divides(s.model_parallel, s.training),
            lambda s: f"{s.training} and {s.tensor} x {s.pipeline} x {s.context}",
            source,
        ),
    )


HEADS = _on_placement(
    "backend.engine.tensor_parallel",
    "the model's attention heads must be divisible by engine.tensor_parallel, its key-value heads a multiple or a"
    " divisor of it",
    lambda s: (
        s.num_heads is None
        or (
            divides(s.engine_tensor, s.num_heads)
            and fits(s.engine_tensor, s.num_kv_heads or s.num_heads)
        )
    ),
    lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, engine.tensor_parallel {s.engine_tensor}",
    "vLLM and SGLang, column-parallel attention",
)


def _uneven_stages(batch: BatchShape) -> str:
    """The numbers of a division into pipeline stages, with the two nearest legal values of last_stage_layers."""
    layers = batch.num_layers or 0
    first = batch.first_stage
    legal = [last for last in range(1, layers) if replace(batch, last_stage=last).stages]
    nearest = sorted(legal, key=lambda last: abs(last - layers / batch.pipeline))[:2]
    fix = ""
    if nearest:
        fix = f"; last_stage_layers may be {' or '.join(map(str, sorted(nearest)))}"
    return (
        f"{layers} layers, pipeline {batch.pipeline}, first {first}, last {batch.last_stage}{fix}"
    )


MEGATRON = (
    _on_placement(
        "backend.parallel.tensor",
        "the model's attention heads must be divisible by tensor, its key-value heads a multiple or a divisor of it",
        lambda s: (
            s.num_heads is None
            or (divides(s.tensor, s.num_heads) and fits(s.tensor, s.num_kv_heads or 1))
        ),
        lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, tensor {s.tensor}",
        "Megatron-Core, TransformerConfig.__post_init__",
    ),
    _on_placement(
        "backend.parallel.pipeline",
        "the model's layers, without first_stage_layers and last_stage_layers, must be divisible by the other pipeline"
        " stages; with pipeline=1 both are null",
        lambda s: s.num_layers is None or bool(s.stages),
        _uneven_stages,
        "Megatron-Core, transformer_block.py get_num_layers_to_build",
    ),
    _on_placement(
        "backend.parallel.expert",
        "the accelerators that train must be divisible by expert x pipeline, and the model's experts by expert",
        lambda s: (
            divides(s.expert * s.pipeline, s.training)
            and (s.num_heads is None or divides(s.expert, s.num_experts or 1))
        ),
        lambda s: (
            f"{s.training} and {s.expert} x {s.pipeline}, {s.num_experts or 'no'} experts and {s.expert}"
        ),
        "Megatron-Core, parallel_state.initialize_model_parallel",
    ),
)

NOT_MEGATRON = (
    _on_placement(
        "backend.parallel.strategy",
        "tensor, pipeline and expert parallelism need strategy=megatron; with another one all must be 1, and"
        " first_stage_layers and last_stage_layers null",
        lambda s: s.tensor == s.pipeline == s.expert == 1 and s.first_stage is s.last_stage is None,
        lambda s: (
            f"tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}, stages {s.first_stage} and {s.last_stage}"
        ),
        "ddp and fsdp2 shard or copy whole layers",
    ),
)

WHOLE_UPDATES = (Tier.BATCH, "training.updates_per_step")


def with_shared(
    constraints: Constraints, spec: RunSpec, otherwise: Constraints = ()
) -> Constraints:
    """A trainer's own constraints, with those of the engine, which splits attention by heads, and of Megatron.

    Args:
        constraints: constraints of the trainer.
        spec: the spec, which determines the other constraints.
        otherwise: constraints instead of Megatron's, if the policy uses another strategy.
    """
    return (
        *constraints,
        *(() if has_own_decoding(spec) else (HEADS,)),
        *(MEGATRON if is_megatron(spec) else otherwise),
    )


def broken(batch: BatchShape, constraints: Constraints) -> list[Constraint]:
    """The violated constraints of the first tier that has any."""
    violated = [constraint for constraint in constraints if not constraint.holds(batch)]
    first = min((constraint.tier for constraint in violated), default=None)
    return [constraint for constraint in violated if constraint.tier is first]


@dataclass(frozen=True)
class Proposal:
    """A legal batch shape, as overrides."""

    changes: dict[str, int]
    """Key of the spec -> value."""
    cost: float

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.changes.items())


def nearest_legal(batch: BatchShape, constraints: Constraints) -> list[Proposal]:
    """Up to three legal batch shapes with one or two changed numbers, without those that change more than another does.

    The cost is the sum of FIELDS x (1/4 + |log2(new / old)|) over the numbers that change.
    """
    proposals = []
    is_misplaced = any(
        constraint.tier is Tier.PLACEMENT for constraint in broken(batch, constraints)
    )
    for changes in islice(_placements(batch) if is_misplaced else _schedules(batch), MOST_TRIED):
        candidate = replace(batch, **changes)
        if all(constraint.holds(candidate) for constraint in constraints):
            factors = {name: value / getattr(batch, name) for name, value in changes.items()}
            cost = sum(
                FIELDS[name][1] * (0.25 + abs(math.log2(factor)))
                for name, factor in factors.items()
            )
            proposals.append(
                Proposal({FIELDS[name][0]: value for name, value in changes.items()}, cost)
            )
    nearest: list[Proposal] = []
    for proposal in sorted(
        proposals,
        key=lambda change_set: (change_set.cost, len(change_set.changes), str(change_set)),
    ):
        if not any(chosen.changes.items() <= proposal.changes.items() for chosen in nearest):
            nearest.append(proposal)
    return nearest[:MOST]


def _schedules(batch: BatchShape) -> Iterator[Changes]:
    """Other numbers of episodes on the same placement; the micro-batch is adapted if necessary."""
    for name in ("micro", *SCHEDULE):
        for value in _values(batch, name):
            changes: Changes = {name: value}
            yield changes
            micro = _best_micro(replace(batch, **changes))
            if name != "micro" and not batch.is_packed and micro != batch.micro:
                yield {**changes, "micro": micro}


def _placements(batch: BatchShape) -> Iterator[Changes]:
    """Other placements, with a fitting number of episodes if the given one does not fit."""
    names = [name for name in PLACEMENT if getattr(batch, name) is not None]
    for name in names:
        for value in _values(batch, name):
            changes: Changes = {name: value}
            yield changes
            yield from (
                changes | more for more in _schedules(replace(batch, **changes)) if len(more) == 1
            )
            for other in names[names.index(name) + 1 :]:
                yield from ({**changes, other: count} for count in _values(batch, other))


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


def batch_refusals(spec: RunSpec, constraints: Constraints) -> list[Refusal]:
    """Every violated constraint, with its formula, the numbers, the source, and the nearest legal batch shapes."""
    batch = batch_shape(spec)
    violated = broken(batch, constraints)
    if not violated:
        return []
    near = nearest_legal(batch, constraints)
    if near:
        fix = f"set the nearest legal: {', or '.join(map(str, near))}"
    else:
        fix = "no similar batch shape is legal; set other numbers of training.* and backend.parallel.*"
    by_field = {constraint.field: constraint for constraint in reversed(violated)}
    return [
        Refusal(field, f"{constraint.fault(batch)}; {fix}")
        for field, constraint in by_field.items()
    ]


def arithmetic(spec: RunSpec) -> list[str]:
    """Lines about the distribution of a step's episodes over ranks, for a legal spec."""
    batch = batch_shape(spec)
    per_update = batch.episodes // batch.updates
    share = per_update // batch.ranks
    if batch.is_packed:
        split = f"packed up to {counted(spec.training.max_tokens_per_micro_batch or 0, 'token')} a micro-batch"
    else:
        split = f"{counted(share // batch.micro, 'micro-batch', 'micro-batches')} of {batch.micro}"
    ranks = counted(batch.ranks, "data-parallel rank")
    share_of_all = f"{batch.episodes} / {batch.updates} = {counted(per_update, 'episode')}"
    lines = [f"an update: {share_of_all} over {ranks}, {split} each"]
    if batch.accelerators > 1 or spec.trainer_accelerators:
        shape = " x ".join(
            f"{name} {getattr(batch, name)}"
            for name in ("tensor", "pipeline", "context")
            if getattr(batch, name) > 1
        )
        engines = f"{counted(batch.engines, 'engine')} of {batch.engine_tensor}"
        where = "the same" if batch.engine_accelerators is None else "their own"
        judge = spec.served_judge
        serving = "" if judge is None else f"; {judge.accelerators} serve the judge"
        lines.append(
            f"accelerators: {batch.training} train ({ranks}{' x ' + shape if shape else ''});"
            f" {engines} on {where} {batch.generating}"
            f"{serving}"
        )
    return lines
