"""Conversion of xp's numbers to SkyRL's: machines, training processes, engines, prompts of an update.

The constraints are in xp.planning.batch, with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from xp.planning.batch import batch_shape
from xp.spec import Placement, RunSpec, Strategy


@dataclass(frozen=True)
class SkyRLBatchShape:
    """The batch shape of one legal spec, in SkyRL's units."""

    num_nodes: int
    """Number of machines that train."""
    workers_per_node: int
    """Training processes on each of them, one per accelerator (or per share of the CPU)."""
    num_engines: int
    mini_batch: int
    """Prompts per optimizer update."""
    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""

    @property
    def num_workers(self) -> int:
        return self.num_nodes * self.workers_per_node


def geometry(spec: RunSpec) -> SkyRLBatchShape:
    """Computes SkyRL's numbers, which have no meaning for a spec that violates a constraint."""
    batch = batch_shape(spec)
    taken = batch.engine_accelerators or 0
    # Separate engines use whole machines if possible, else the same share of each.
    nodes_left = batch.num_nodes - taken // batch.per_node
    is_by_node = taken % batch.per_node == 0 and nodes_left > 0
    return SkyRLBatchShape(
        num_nodes=nodes_left if is_by_node else batch.num_nodes,
        workers_per_node=batch.per_node - (0 if is_by_node else taken // batch.num_nodes),
        num_engines=batch.engines,
        mini_batch=batch.prompts // batch.updates,
        updates_per_rollout=batch.updates * spec.training.passes_per_step,
    )


def is_colocated(spec: RunSpec) -> bool:
    """Returns whether training and generation take turns on the same accelerators."""
    return spec.backend.engine.placement is Placement.COLOCATED


def is_megatron(spec: RunSpec) -> bool:
    """Returns whether Megatron trains; else FSDP2 does."""
    return spec.backend.parallel.strategy is Strategy.MEGATRON
