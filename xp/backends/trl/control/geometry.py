"""The batch arithmetic of TRL's GRPOConfig: from prompts and groups to sequences per device and optimizer updates.

Source: trl 1.16.0, trl/trainer/grpo_config.py `__post_init__`. One process is one data-parallel rank. What must divide
what is in xp.planning.batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from xp.spec import EngineName, Placement, RunSpec


@dataclass(frozen=True)
class TRLBatchShape:
    """The batch shape of one spec, in GRPOConfig's units."""

    generation_batch_size: int
    """Episodes per rollout step over all ranks."""
    gradient_accumulation_steps: int
    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""
    episodes_per_process: int
    """Episodes of one rollout step on one process."""


def world_size(spec: RunSpec) -> int:
    """Number of training processes on all nodes."""
    return spec.hardware.num_nodes * node_size(spec)


def node_size(spec: RunSpec) -> int:
    """Number of training processes per node: one per accelerator not reserved for engines; on a CPU, as configured."""
    if spec.hardware.accelerator == "cpu":
        return max(1, spec.hardware.accelerators_per_node)
    return max(1, spec.hardware.accelerators_per_node - (spec.backend.engine.accelerators or 0))


def geometry(spec: RunSpec) -> TRLBatchShape:
    """Computes TRL's numbers, which have no meaning for a spec with `xp.planning.batch.batch_refusals`."""
    training = spec.training
    episodes = training.prompts_per_step * training.group_size
    per_update = training.updates_per_step * training.micro_batch_size * world_size(spec)
    updates = training.updates_per_step * training.passes_per_step
    return TRLBatchShape(
        generation_batch_size=episodes,
        gradient_accumulation_steps=episodes // per_update,
        updates_per_rollout=updates,
        episodes_per_process=episodes // world_size(spec),
    )


def is_colocated(spec: RunSpec) -> bool:
    """Returns whether vLLM runs inside the training processes."""
    engine = spec.backend.engine
    return engine.name is EngineName.VLLM and engine.placement is Placement.COLOCATED
