"""Slime's constraints on the batch shape, and Megatron's."""

from __future__ import annotations

from xp.planning.batch import WHOLE_UPDATES, Constraint, Tier, divides, placement

SLIME_ARGUMENTS = "slime 0.3.1, slime/utils/arguments.py slime_validate_args"
MEGATRON_MICRO_BATCHES = (
    "Megatron-Core, num_microbatches_calculator.py, which slime 0.3.1 sets up in any case"
)

CONSTRAINTS = (
    *placement(SLIME_ARGUMENTS),
    Constraint(
        Tier.PLACEMENT,
        "backend.engine.accelerators",
        "the accelerators that train must be whole nodes, or part of one",
        lambda s: s.training <= s.per_node or divides(s.per_node, s.training),
        lambda s: f"{s.training} of {s.num_nodes} x {s.per_node}",
        "slime 0.3.1, --actor-num-nodes x --actor-num-gpus-per-node",
    ),
    Constraint(
        *WHOLE_UPDATES,
        "prompts_per_step x group_size must be divisible by updates_per_step",
        lambda s: divides(s.updates, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.updates}",
        SLIME_ARGUMENTS,
        "the batch of an update is rounded down, and the remaining episodes are dropped",
    ),
    Constraint(
        Tier.BATCH,
        "training.prompts_per_step",
        "an update's episodes must be divisible by the data-parallel size, with packed micro-batches too",
        lambda s: s.episodes >= s.updates and divides(s.ranks, s.episodes // s.updates),
        lambda s: f"{s.episodes} / {s.updates} and {s.ranks}",
        MEGATRON_MICRO_BATCHES,
    ),
    Constraint(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one rank must be divisible by micro_batch_size",
        lambda s: s.is_packed or divides(s.micro, s.episodes // s.updates // s.ranks),
        lambda s: f"{s.episodes} / {s.updates} / {s.ranks} and {s.micro}",
        MEGATRON_MICRO_BATCHES,
    ),
)
