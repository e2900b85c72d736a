"""Converts xp's numbers to Slime's layout of accelerators and units; its constraints are in xp.planning.batch.

Source at the pinned commit: slime/utils/arguments.py `slime_validate_args`, slime/ray/placement_group.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from xp.spec import Placement, RunSpec


@dataclass(frozen=True)
class SlimeBatchShape:
    """The batch shape of one spec, in Slime's units."""

    train_nodes: int
    train_per_node: int
    """Number of accelerators that train on each of those nodes."""
    rollout: int
    """Number of accelerators that generate, over all nodes."""
    samples_per_update: int
    """Number of episodes of one optimizer update, over all ranks."""


def is_colocated(spec: RunSpec) -> bool:
    return spec.backend.engine.placement is Placement.COLOCATED


def num_engines(spec: RunSpec) -> int:
    return max(1, geometry(spec).rollout // spec.backend.engine.tensor_parallel)


def geometry(spec: RunSpec) -> SlimeBatchShape:
    """Computes Slime's numbers, which have no meaning for a spec with `xp.planning.batch.batch_refusals`."""
    per_node, training = spec.hardware.accelerators_per_node, spec.training
    total = per_node * spec.hardware.num_nodes
    apart = spec.backend.engine.accelerators or 0
    train = total - apart
    nodes = max(1, -(-train // max(1, per_node)))
    return SlimeBatchShape(
        train_nodes=nodes,
        train_per_node=train // nodes,
        rollout=total if is_colocated(spec) else apart,
        samples_per_update=training.prompts_per_step * training.group_size // training.updates_per_step,
    )


def episodes_per_engine(spec: RunSpec, at_once: int) -> int:
    return -(-at_once // num_engines(spec))
