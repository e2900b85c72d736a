"""SkyRL's batch and placement arithmetic, with the conditions that SkyRL itself rounds away in silence.

Source: skyrl 0.3.0, skyrl/train/utils/utils.py `validate_batch_sizes` and `validate_cfg`.
"""

from __future__ import annotations

from dataclasses import dataclass

from xp.backends.base import Refusal
from xp.spec import Placement, RunSpec, Strategy


@dataclass(frozen=True)
class Geometry:
    """What SkyRL counts in, for one spec."""

    num_nodes: int
    """Machines that train."""
    workers_per_node: int
    """Training processes on each of them, one an accelerator (or one a share of the CPU)."""
    num_engines: int
    data_parallel: int
    """Replicas of the policy among the training processes."""
    mini_batch: int
    """Prompts per optimizer update."""
    updates_per_rollout: int
    """Optimizer updates per rollout step, all passes together."""

    @property
    def num_workers(self) -> int:
        return self.num_nodes * self.workers_per_node


def geometry(spec: RunSpec) -> Geometry:
    """Solve for SkyRL's numbers; call only where `geometry_refusals` is empty."""
    training, parallel = spec.training, spec.backend.parallel
    num_nodes, per_node = _training_nodes(spec) or (0, 0)
    return Geometry(
        num_nodes=num_nodes,
        workers_per_node=per_node,
        num_engines=_engine_accelerators(spec) // spec.backend.engine.tensor_parallel,
        data_parallel=num_nodes * per_node // (parallel.tensor * parallel.pipeline * parallel.context),
        mini_batch=training.prompts_per_step // training.updates_per_step,
        updates_per_rollout=training.updates_per_step * training.passes_per_step,
    )


def geometry_refusals(spec: RunSpec) -> list[Refusal]:
    """What does not divide, with the nearest value that does; batches are looked at once the placement is whole."""
    return _placement_refusals(spec) or _batch_refusals(spec)


def _accelerators(spec: RunSpec) -> int:
    """All of them; a CPU without a count is one process."""
    return max(1, spec.hardware.accelerators_per_node) * spec.hardware.num_nodes


def _engine_accelerators(spec: RunSpec) -> int:
    """Colocated engines use those that train."""
    return spec.backend.engine.accelerators or _accelerators(spec)


def _training_nodes(spec: RunSpec) -> tuple[int, int] | None:
    """Machines that train and processes on each; engines take whole machines, else as much of each; None if neither."""
    num_nodes, per_node = spec.hardware.num_nodes, max(1, spec.hardware.accelerators_per_node)
    taken = spec.backend.engine.accelerators or 0
    if taken >= num_nodes * per_node:
        return None
    if num_nodes > 1 and taken % per_node == 0:
        return num_nodes - taken // per_node, per_node
    return (num_nodes, per_node - taken // num_nodes) if taken % num_nodes == 0 else None


def _placement_refusals(spec: RunSpec) -> list[Refusal]:
    engine, parallel = spec.backend.engine, spec.backend.parallel
    nodes = _training_nodes(spec)
    if nodes is None:
        return [
            Refusal(
                "backend.engine.accelerators",
                f"{engine.accelerators} of {_accelerators(spec)} accelerators on {spec.hardware.num_nodes} nodes leave"
                " no equal share of each node to train on; take whole nodes or as many from each",
            )
        ]
    found = []
    if _engine_accelerators(spec) % engine.tensor_parallel:
        found.append(
            Refusal(
                "backend.engine.tensor_parallel",
                f"{_engine_accelerators(spec)} accelerators do not divide into engines of {engine.tensor_parallel};"
                f" {_nearest_divisor(_engine_accelerators(spec), engine.tensor_parallel)} does",
            )
        )
    workers = nodes[0] * nodes[1]
    share = parallel.tensor * parallel.pipeline * parallel.context
    if workers % share:
        found.append(
            Refusal(
                "backend.parallel.tensor" if is_megatron(spec) else "backend.parallel.context",
                f"tensor x pipeline x context = {share} does not divide the {workers} accelerators that train;"
                " change one of them",
            )
        )
    if workers % (parallel.expert * parallel.pipeline):
        found.append(
            Refusal(
                "backend.parallel.expert",
                f"expert x pipeline = {parallel.expert * parallel.pipeline} does not divide the {workers} accelerators"
                " that train; change one of them",
            )
        )
    return found


def _batch_refusals(spec: RunSpec) -> list[Refusal]:
    training = spec.training
    if training.prompts_per_step % training.updates_per_step:
        best = _nearest_divisor(training.prompts_per_step, training.updates_per_step)
        return [
            Refusal(
                "training.updates_per_step",
                f"SkyRL's mini-batches are whole prompts, and {training.prompts_per_step} prompts_per_step do not"
                f" divide into {training.updates_per_step} updates; the nearest that does is {best}",
            )
        ]
    solved = geometry(spec)
    episodes = solved.mini_batch * training.group_size
    if episodes % solved.data_parallel:
        return [
            Refusal(
                "training.prompts_per_step",
                f"an update has {episodes} episodes (prompts_per_step / updates_per_step x group_size), which do not"
                f" divide over {solved.data_parallel} data-parallel processes; SkyRL would round down in silence",
            )
        ]
    share = episodes // solved.data_parallel
    if training.max_tokens_per_micro_batch is None and share % training.micro_batch_size:
        best = _nearest_divisor(share, training.micro_batch_size)
        return [
            Refusal(
                "training.micro_batch_size",
                f"{training.micro_batch_size} does not divide the {share} episodes of one process and update;"
                f" the nearest that does is training.micro_batch_size={best}",
            )
        ]
    return []


def _nearest_divisor(number: int, wanted: int) -> int:
    legal = [n for n in range(1, number + 1) if number % n == 0]
    return min(legal, key=lambda n: (abs(n - wanted), n))


def is_colocated(spec: RunSpec) -> bool:
    """Whether training and generation take turns on the same accelerators."""
    return spec.backend.engine.placement is Placement.COLOCATED


def is_megatron(spec: RunSpec) -> bool:
    """Whether Megatron trains; else FSDP2 does."""
    return spec.backend.parallel.strategy is Strategy.MEGATRON
