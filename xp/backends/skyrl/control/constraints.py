"""SkyRL's constraints on the batch shape; its `validate_cfg` checks some of them."""

from __future__ import annotations

from xp.planning.batch import (
    NOT_MEGATRON,
    WHOLE_UPDATES,
    Constraint,
    Tier,
    divides,
    fits,
    placement,
)

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
