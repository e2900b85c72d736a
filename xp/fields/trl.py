"""How TRL sees a spec: its processes, and what several of its columns share."""

from __future__ import annotations

from xp.fields.field import Native
from xp.fields.shared import is_colocated, is_on_cpu, uses_vllm
from xp.spec import RunSpec, Strategy


def world_size(spec: RunSpec) -> int:
    """Number of training processes on all nodes."""
    return spec.hardware.num_nodes * node_size(spec)


def node_size(spec: RunSpec) -> int:
    """Number of training processes per node: one per accelerator not reserved for engines; on a CPU, as configured."""
    if is_on_cpu(spec):
        return max(1, spec.trainer_accelerators)
    return max(1, spec.trainer_accelerators - (spec.backend.engine.accelerators or 0))


def episodes_per_process(spec: RunSpec) -> int:
    """Episodes of one rollout step on one process."""
    return spec.training.episodes_per_step // world_size(spec)


def is_sharded(spec: RunSpec) -> bool:
    """Returns whether FSDP2 shards the policy; on one process the model is whole."""
    return spec.backend.parallel.strategy is Strategy.FSDP2 and world_size(spec) > 1


def distributed_type(spec: RunSpec) -> str:
    """accelerate's name for the way in which several processes train; its name of plain data parallelism on CPUs too."""
    if is_sharded(spec):
        return "FSDP"
    return "MULTI_GPU"


def accumulation(spec: RunSpec, episodes: int, micro_batch_size: int) -> Native:
    """Number of each process's micro-batches in an update of so many episodes."""
    return {"gradient_accumulation_steps": episodes // (micro_batch_size * world_size(spec))}


def has_colocated_engine(spec: RunSpec) -> bool:
    """Returns whether vLLM runs inside the training processes."""
    return uses_vllm(spec) and is_colocated(spec)


TRL_MEANS = "xp.backends.trl.worker.means"
NO_CRITIC = "nothing: GRPOTrainer has no critic"
