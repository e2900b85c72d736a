"""Constraints on the batch shape: formula, source, and effect of a violation; each backend states its own.

If `silent` is empty, the trainer itself refuses a violation. Otherwise it continues with a different behaviour, which
`silent` describes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from xp.planning.batch.shape import BatchShape
from xp.spec import EngineName, RunSpec, Strategy


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


def divides(part: int, whole: int) -> bool:
    return part > 0 and whole % part == 0


def fits(part: int, whole: int) -> bool:
    """Returns whether one of two numbers divides the other: heads are split over ranks, or copied to several."""
    return divides(part, whole) or divides(whole, part)


def placement(source: str) -> tuple[Constraint, ...]:
    """Constraints on how accelerators are shared; the same on every backend."""
    return (
        Constraint(
            Tier.PLACEMENT,
            "backend.engine.accelerators",
            "engine.accelerators must be less than accelerators_per_node x num_nodes",
            lambda s: s.training > 0,
            lambda s: f"{s.engine_accelerators} and {s.per_node} x {s.num_nodes}",
            source,
        ),
        Constraint(
            Tier.PLACEMENT,
            "backend.engine.tensor_parallel",
            "the engines' accelerators must be divisible by engine.tensor_parallel",
            lambda s: divides(s.engine_tensor, s.generating),
            lambda s: f"{s.generating} and {s.engine_tensor}",
            source,
        ),
        Constraint(
            Tier.PLACEMENT,
            "backend.parallel",
            "the accelerators that train must be divisible by tensor x pipeline x context",
            lambda s: s.training > 0 and divides(s.model_parallel, s.training),
            lambda s: f"{s.training} and {s.tensor} x {s.pipeline} x {s.context}",
            source,
        ),
    )


HEADS = (
    Constraint(
        Tier.PLACEMENT,
        "backend.engine.tensor_parallel",
        "the model's attention heads must be divisible by engine.tensor_parallel, its key-value heads a multiple or a"
        " divisor of it",
        lambda s: (
            s.num_heads is None
            or (divides(s.engine_tensor, s.num_heads) and fits(s.engine_tensor, s.num_kv_heads or s.num_heads))
        ),
        lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, engine.tensor_parallel {s.engine_tensor}",
        "vLLM and SGLang, column-parallel attention",
    ),
)

MEGATRON = (
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.tensor",
        "the model's attention heads must be divisible by tensor, its key-value heads a multiple or a divisor of it",
        lambda s: s.num_heads is None or (divides(s.tensor, s.num_heads) and fits(s.tensor, s.num_kv_heads or 1)),
        lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, tensor {s.tensor}",
        "Megatron-Core, TransformerConfig.__post_init__",
    ),
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.pipeline",
        "the model's layers must be divisible by pipeline",
        lambda s: s.num_layers is None or divides(s.pipeline, s.num_layers),
        lambda s: f"{s.num_layers} and {s.pipeline}",
        "Megatron-Core, TransformerConfig.__post_init__",
    ),
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.expert",
        "the accelerators that train must be divisible by expert x pipeline, and the model's experts by expert",
        lambda s: (
            divides(s.expert * s.pipeline, s.training)
            and (s.num_heads is None or divides(s.expert, s.num_experts or 1))
        ),
        lambda s: f"{s.training} and {s.expert} x {s.pipeline}, {s.num_experts or 'no'} experts and {s.expert}",
        "Megatron-Core, parallel_state.initialize_model_parallel",
    ),
)

NOT_MEGATRON = (
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.strategy",
        "tensor, pipeline and expert parallelism need strategy=megatron; with another one all must be 1",
        lambda s: s.tensor == s.pipeline == s.expert == 1,
        lambda s: f"tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}",
        "ddp and fsdp2 shard or copy whole layers",
    ),
)

WHOLE_UPDATES = (Tier.BATCH, "training.updates_per_step")


def with_shared(
    own: tuple[Constraint, ...], spec: RunSpec, otherwise: tuple[Constraint, ...] = ()
) -> tuple[Constraint, ...]:
    """A trainer's own constraints, with those of the engine, which splits attention by heads, and of Megatron.

    Args:
        own: constraints of the trainer.
        spec: the spec, which determines the other constraints.
        otherwise: constraints instead of Megatron's, if the policy uses another strategy.
    """
    is_megatron = spec.backend.parallel.strategy is Strategy.MEGATRON
    has_engine = spec.backend.engine.name is not EngineName.TRANSFORMERS
    return (*own, *(HEADS if has_engine else ()), *(MEGATRON if is_megatron else otherwise))


def broken(batch: BatchShape, constraints: tuple[Constraint, ...]) -> list[Constraint]:
    """The violated constraints of the first tier that has any."""
    found = [constraint for constraint in constraints if not constraint.holds(batch)]
    return [constraint for constraint in found if constraint.tier == min(one.tier for one in found)]
