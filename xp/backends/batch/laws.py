"""Constraints on the batch shape for each backend: formula, source, and effect of a violation.

If `silent` is empty, the trainer itself refuses a violation. Otherwise it continues and does something else than the
spec says; `silent` says what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from xp.backends.batch.setting import Setting
from xp.spec import EngineName, RunSpec, Strategy


class Tier(IntEnum):
    """Order of checks: constraints of a later tier have no meaning while one of an earlier tier is violated."""

    PLACEMENT = 0
    BATCH = 1
    MICRO = 2


@dataclass(frozen=True)
class Law:
    """A constraint on the batch shape."""

    tier: Tier
    field: str
    """Key of the spec that the message names."""
    formula: str
    holds: Callable[[Setting], bool]
    numbers: Callable[[Setting], str]
    """Values in the formula for a batch shape."""
    source: str
    silent: str = ""


def divides(part: int, whole: int) -> bool:
    return part > 0 and whole % part == 0


def _fits(part: int, whole: int) -> bool:
    return divides(part, whole) or divides(whole, part)


TRL_CONFIG = "trl 1.16.0, GRPOConfig.__post_init__"
SKYRL_BATCHES = "skyrl 0.3.0, train/utils/utils.py validate_batch_sizes"
MEGATRON_MICRO_BATCHES = "Megatron-Core, num_microbatches_calculator.py, which slime 0.3.1 sets up in any case"
SLIME_ARGUMENTS = "slime 0.3.1, slime/utils/arguments.py slime_validate_args"


def _placement(source: str) -> tuple[Law, ...]:
    """Constraints on how accelerators are shared; the same on every backend."""
    return (
        Law(
            Tier.PLACEMENT,
            "backend.engine.accelerators",
            "engine.accelerators must be less than accelerators_per_node x num_nodes",
            lambda s: s.training > 0,
            lambda s: f"{s.engine_accelerators} and {s.per_node} x {s.num_nodes}",
            source,
        ),
        Law(
            Tier.PLACEMENT,
            "backend.engine.tensor_parallel",
            "the engines' accelerators must be divisible by engine.tensor_parallel",
            lambda s: divides(s.engine_tensor, s.generating),
            lambda s: f"{s.generating} and {s.engine_tensor}",
            source,
        ),
        Law(
            Tier.PLACEMENT,
            "backend.parallel",
            "the accelerators that train must be divisible by tensor x pipeline x context",
            lambda s: s.training > 0 and divides(s.model_parallel, s.training),
            lambda s: f"{s.training} and {s.tensor} x {s.pipeline} x {s.context}",
            source,
        ),
    )


HEADS = (
    Law(
        Tier.PLACEMENT,
        "backend.engine.tensor_parallel",
        "the model's attention heads must be divisible by engine.tensor_parallel",
        lambda s: s.num_heads is None or divides(s.engine_tensor, s.num_heads),
        lambda s: f"{s.num_heads} and {s.engine_tensor}",
        "vLLM and SGLang, column-parallel attention",
    ),
)

MEGATRON = (
    Law(
        Tier.PLACEMENT,
        "backend.parallel.tensor",
        "the model's attention heads must be divisible by tensor, its key-value heads a multiple or a divisor of it",
        lambda s: s.num_heads is None or (divides(s.tensor, s.num_heads) and _fits(s.tensor, s.num_kv_heads or 1)),
        lambda s: f"{s.num_heads} and {s.num_kv_heads} heads, tensor {s.tensor}",
        "Megatron-Core, TransformerConfig.__post_init__",
    ),
    Law(
        Tier.PLACEMENT,
        "backend.parallel.pipeline",
        "the model's layers must be divisible by pipeline",
        lambda s: s.num_layers is None or divides(s.pipeline, s.num_layers),
        lambda s: f"{s.num_layers} and {s.pipeline}",
        "Megatron-Core, TransformerConfig.__post_init__",
    ),
    Law(
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
    Law(
        Tier.PLACEMENT,
        "backend.parallel.strategy",
        "tensor, pipeline and expert parallelism need strategy=megatron; with another one all must be 1",
        lambda s: s.tensor == s.pipeline == s.expert == 1,
        lambda s: f"tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}",
        "ddp and fsdp2 shard or copy whole layers",
    ),
)

WHOLE_UPDATES = (Tier.BATCH, "training.updates_per_step")

TRL = (
    *_placement("one process per accelerator (accelerate)"),
    Law(
        Tier.PLACEMENT,
        "backend.parallel.tensor",
        "tensor, pipeline and expert must be 1: each process holds whole layers and all experts",
        lambda s: s.tensor == s.pipeline == s.expert == 1,
        lambda s: f"tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}",
        "trl 1.16.0, GRPOTrainer under accelerate",
    ),
    Law(
        Tier.PLACEMENT,
        "backend.parallel.context",
        "context must be 1: a sequence is not split over processes",
        lambda s: s.context == 1,
        lambda s: f"{s.context}",
        TRL_CONFIG,
    ),
    Law(
        *WHOLE_UPDATES,
        "prompts_per_step x group_size must be divisible by updates_per_step x processes",
        lambda s: divides(s.updates * s.ranks, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.updates} x {s.ranks}",
        "trl 1.16.0, GRPOTrainer: updates = episodes / (processes x micro-batch x accumulation)",
        "the accumulation is rounded, so the number and the size of a step's updates differ from the spec",
    ),
    Law(
        Tier.MICRO,
        "training.micro_batch_size",
        "prompts_per_step x group_size must be divisible by micro_batch_size x processes",
        lambda s: divides(s.micro * s.ranks, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.micro} x {s.ranks}",
        TRL_CONFIG,
    ),
    Law(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one process must be divisible by micro_batch_size",
        lambda s: divides(s.micro * s.updates * s.ranks, s.episodes),
        lambda s: f"{s.episodes} / ({s.updates} x {s.ranks}) and {s.micro}",
        "trl 1.16.0, GRPOTrainer: updates = episodes / (processes x micro-batch x accumulation)",
        "the accumulation is rounded, so the number and the size of a step's updates differ from the spec",
    ),
)

SKYRL = (
    *_placement("skyrl 0.3.0, train/utils/utils.py validate_cfg"),
    Law(
        Tier.PLACEMENT,
        "backend.engine.accelerators",
        "the engines must take whole nodes, or the same number of accelerators of each node",
        lambda s: divides(s.num_nodes, s.engine_accelerators or 0) or divides(s.per_node, s.engine_accelerators or 0),
        lambda s: f"{s.engine_accelerators} of {s.num_nodes} x {s.per_node}",
        "skyrl 0.3.0, placement counts are nodes x accelerators per node",
    ),
    Law(
        *WHOLE_UPDATES,
        "prompts_per_step must be divisible by the prompts of an update",
        lambda s: divides(s.prompts // s.updates, s.prompts),
        lambda s: f"{s.prompts} and {s.prompts} // {s.updates} = {s.prompts // s.updates}",
        SKYRL_BATCHES,
    ),
    Law(
        *WHOLE_UPDATES,
        "prompts_per_step must be divisible by updates_per_step (an update is whole prompts)",
        lambda s: divides(s.updates, s.prompts),
        lambda s: f"{s.prompts} and {s.updates}",
        SKYRL_BATCHES,
        "the prompts of an update are rounded down, so a step has more updates than the spec says",
    ),
    Law(
        Tier.BATCH,
        "training.prompts_per_step",
        "an update must have at least one episode for each data-parallel rank",
        lambda s: s.prompts // s.updates * s.group >= s.ranks,
        lambda s: f"{s.prompts} / {s.updates} x {s.group} episodes and {s.ranks} ranks",
        SKYRL_BATCHES,
    ),
    Law(
        Tier.BATCH,
        "training.prompts_per_step",
        "a rank's share of a step must be divisible by its share of an update",
        lambda s: divides(s.prompts // s.updates * s.group // s.ranks, s.episodes // s.ranks),
        lambda s: f"{s.episodes} // {s.ranks} and {s.prompts // s.updates * s.group} // {s.ranks}",
        SKYRL_BATCHES,
    ),
    Law(
        Tier.BATCH,
        "training.prompts_per_step",
        "prompts_per_step / updates_per_step x group_size must be divisible by the data-parallel size",
        lambda s: divides(s.ranks, s.prompts // s.updates * s.group),
        lambda s: f"{s.prompts} / {s.updates} x {s.group} and {s.ranks}",
        SKYRL_BATCHES,
        "a rank's share is rounded down, and the micro-batch is checked against the rounded number",
    ),
    Law(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one rank must be divisible by micro_batch_size",
        lambda s: s.is_packed or divides(s.micro, s.prompts // s.updates * s.group // s.ranks),
        lambda s: f"{s.prompts} / {s.updates} x {s.group} / {s.ranks} and {s.micro}",
        SKYRL_BATCHES,
    ),
)

SLIME = (
    *_placement(SLIME_ARGUMENTS),
    Law(
        Tier.PLACEMENT,
        "backend.engine.accelerators",
        "the accelerators that train must be whole nodes, or part of one",
        lambda s: s.training <= s.per_node or divides(s.per_node, s.training),
        lambda s: f"{s.training} of {s.num_nodes} x {s.per_node}",
        "slime 0.3.1, --actor-num-nodes x --actor-num-gpus-per-node",
    ),
    Law(
        *WHOLE_UPDATES,
        "prompts_per_step x group_size must be divisible by updates_per_step",
        lambda s: divides(s.updates, s.episodes),
        lambda s: f"{s.prompts} x {s.group} and {s.updates}",
        SLIME_ARGUMENTS,
        "the batch of an update is rounded down, and the remaining episodes are dropped",
    ),
    Law(
        Tier.BATCH,
        "training.prompts_per_step",
        "an update's episodes must be divisible by the data-parallel size, with packed micro-batches too",
        lambda s: s.episodes >= s.updates and divides(s.ranks, s.episodes // s.updates),
        lambda s: f"{s.episodes} / {s.updates} and {s.ranks}",
        MEGATRON_MICRO_BATCHES,
    ),
    Law(
        Tier.MICRO,
        "training.micro_batch_size",
        "an update's episodes of one rank must be divisible by micro_batch_size",
        lambda s: s.is_packed or divides(s.micro, s.episodes // s.updates // s.ranks),
        lambda s: f"{s.episodes} / {s.updates} / {s.ranks} and {s.micro}",
        MEGATRON_MICRO_BATCHES,
    ),
)


def with_shared_laws(own: tuple[Law, ...], spec: RunSpec, otherwise: tuple[Law, ...] = ()) -> tuple[Law, ...]:
    """A trainer's own constraints, with those of an engine, which splits attention by heads, and of Megatron.

    Args:
        own: constraints of the trainer.
        spec: decides which of the others apply.
        otherwise: in the place of Megatron's, where the policy is spread in another way.
    """
    is_megatron = spec.backend.parallel.strategy is Strategy.MEGATRON
    has_engine = spec.backend.engine.name is not EngineName.TRANSFORMERS
    return (*own, *(HEADS if has_engine else ()), *(MEGATRON if is_megatron else otherwise))


def broken(setting: Setting, laws: tuple[Law, ...]) -> list[Law]:
    """The violated constraints of the first tier that has any."""
    found = [law for law in laws if not law.holds(setting)]
    return [law for law in found if law.tier == min(one.tier for one in found)]
