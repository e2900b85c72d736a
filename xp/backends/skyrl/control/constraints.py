"""SkyRL's constraints on the batch shape; its `validate_cfg` checks some of them."""

from __future__ import annotations

from dataclasses import dataclass

from xp.planning.batch import (
    NOT_MEGATRON,
    WHOLE_UPDATES,
    Constraint,
    Tier,
    batch_shape,
    divides,
    fits,
    placement,
)
from xp.spec import Placement, RunSpec, Strategy

SKYRL_BATCHES = "skyrl 0.4.0, train/utils/utils.py validate_batch_sizes"

FSDP2 = (
    *NOT_MEGATRON,
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.context",
        "the model's attention heads must be divisible by context, its key-value heads a multiple or a divisor of it",
        lambda s: (
            s.num_heads is None
            or (divides(s.context, s.num_heads) and fits(s.context, s.num_kv_heads or 1))
        ),
        lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, context {s.context}",
        "skyrl 0.4.0, distributed/ulysses/monkey_patch.py apply_monkey_patch",
    ),
)
"""Constraints of FSDP2 alone."""

CONSTRAINTS = (
    *placement("skyrl 0.4.0, train/utils/utils.py validate_cfg"),
    Constraint(
        Tier.PLACEMENT,
        "backend.engine.accelerators",
        "the engines must take whole nodes, or the same number of accelerators of each node",
        lambda s: any(
            divides(number, s.engine_accelerators or 0) for number in (s.num_nodes, s.per_node)
        ),
        lambda s: f"{s.engine_accelerators} of {s.num_nodes} x {s.per_node}",
        "skyrl 0.4.0, placement counts are nodes x accelerators per node",
    ),
    Constraint(
        *WHOLE_UPDATES,
        "prompts_per_step must be divisible by the prompts of an update",
        lambda s: divides(s.prompts // s.updates, s.prompts),
        lambda s: f"{s.prompts} and {s.prompts} // {s.updates} = {s.prompts // s.updates}",
        SKYRL_BATCHES,
    ),
    Constraint(
        *WHOLE_UPDATES,
        "prompts_per_step must be divisible by updates_per_step (an update is whole prompts)",
        lambda s: divides(s.updates, s.prompts),
        lambda s: f"{s.prompts} and {s.updates}",
        SKYRL_BATCHES,
        "the prompts of an update are rounded down, so a step has more updates than the spec says",
    ),
    Constraint(
        Tier.BATCH,
        "training.prompts_per_step",
        "an update must have at least one episode for each data-parallel rank",
        lambda s: s.prompts // s.updates * s.group >= s.ranks,
        lambda s: f"{s.prompts} / {s.updates} x {s.group} episodes and {s.ranks} ranks",
        SKYRL_BATCHES,
    ),
    Constraint(
        Tier.BATCH,
        "training.prompts_per_step",
        "a rank's share of a step must be divisible by its share of an update",
        lambda s: divides(s.prompts // s.updates * s.group // s.ranks, s.episodes // s.ranks),
        lambda s: f"{s.episodes} // {s.ranks} and {s.prompts // s.updates * s.group} // {s.ranks}",
        SKYRL_BATCHES,
    ),
    Constraint(
        Tier.BATCH,
        "training.prompts_per_step",
        "prompts_per_step / updates_per_step x group_size must be divisible by the data-parallel size",
        lambda s: divides(s.ranks, s.prompts // s.updates * s.group),
        lambda s: f"{s.prompts} / {s.updates} x {s.group} and {s.ranks}",
        SKYRL_BATCHES,
        "a rank's share is rounded down, and the micro-batch is checked against the rounded number",
    ),
    Constraint(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one rank must be divisible by micro_batch_size",
        lambda s: s.is_packed or divides(s.micro, s.prompts // s.updates * s.group // s.ranks),
        lambda s: f"{s.prompts} / {s.updates} x {s.group} / {s.ranks} and {s.micro}",
        SKYRL_BATCHES,
    ),
)


@dataclass(frozen=True)
class Workers:
    """Training processes, one per accelerator (or per share of the CPU)."""

    num_nodes: int
    per_node: int

    @property
    def total(self) -> int:
        return self.num_nodes * self.per_node


def workers(spec: RunSpec) -> Workers:
    """The processes that train; have no meaning for a spec that violates a constraint."""
    batch = batch_shape(spec)
    taken = batch.engine_accelerators or 0
    # Separate engines use whole machines if possible, else the same share of each.
    nodes_left = batch.num_nodes - taken // batch.per_node
    is_by_node = taken % batch.per_node == 0 and nodes_left > 0
    return Workers(
        num_nodes=nodes_left if is_by_node else batch.num_nodes,
        per_node=batch.per_node - (0 if is_by_node else taken // batch.num_nodes),
    )


def is_colocated(spec: RunSpec) -> bool:
    """Returns whether training and generation take turns on the same accelerators."""
    return spec.backend.engine.placement is Placement.COLOCATED


def is_megatron(spec: RunSpec) -> bool:
    """Returns whether Megatron trains; else FSDP2 does."""
    return spec.backend.parallel.strategy is Strategy.MEGATRON
