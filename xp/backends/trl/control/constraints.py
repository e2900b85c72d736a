"""TRL's constraints on the batch shape; GRPOConfig and accelerate check some of them."""

from __future__ import annotations

from xp.planning.batch import WHOLE_UPDATES, Constraint, Tier, divides, placement

TRL_CONFIG = "trl 1.16.0, GRPOConfig.__post_init__"

CONSTRAINTS = (
    *placement("one process per accelerator (accelerate)"),
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.tensor",
        "tensor, pipeline and expert must be 1: each process holds whole layers and all experts",
        lambda s: s.tensor == s.pipeline == s.expert == 1,
        lambda s: f"tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}",
        "trl 1.16.0, GRPOTrainer under accelerate",
    ),
    Constraint(
        Tier.PLACEMENT,
        "backend.parallel.context",
        "context must be 1: a sequence is not split over processes",
        lambda s: s.context == 1,
        lambda s: f"{s.context}",
        TRL_CONFIG,
    ),
    Constraint(
        *WHOLE_UPDATES,
        "prompts_per_step x group_size must be divisible by updates_per_step x processes",
        lambda s: divides(s.updates * s.ranks, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.updates} x {s.ranks}",
        "trl 1.16.0, GRPOTrainer: updates = episodes / (processes x micro-batch x accumulation)",
        "the accumulation is rounded, so the number and the size of a step's updates differ from the spec",
    ),
    Constraint(
        Tier.MICRO,
        "training.micro_batch_size",
        "prompts_per_step x group_size must be divisible by micro_batch_size x processes",
        lambda s: divides(s.micro * s.ranks, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.micro} x {s.ranks}",
        TRL_CONFIG,
    ),
    Constraint(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one process must be divisible by micro_batch_size",
        lambda s: divides(s.micro * s.updates * s.ranks, s.episodes),
        lambda s: f"{s.episodes} / ({s.updates} x {s.ranks}) and {s.micro}",
        "trl 1.16.0, GRPOTrainer: updates = episodes / (processes x micro-batch x accumulation)",
        "the accumulation is rounded, so the number and the size of a step's updates differ from the spec",
    ),
)
