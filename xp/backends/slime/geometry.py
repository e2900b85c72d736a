"""The layout of Slime's accelerators and its batch arithmetic.

Sources at the pinned commit: slime/utils/arguments.py `slime_validate_args`, slime/utils/dp_schedule.py,
slime/ray/placement_group.py, and Megatron's arguments.py, transformer_config.py and num_microbatches_calculator.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xp.backends.base import Refusal
from xp.spec import Placement, RunSpec


@dataclass(frozen=True)
class Geometry:
    """What Slime counts in, for one spec."""

    train_nodes: int
    train_per_node: int
    """Accelerators that train, on each of those nodes."""
    rollout: int
    """Accelerators that generate, over all nodes."""
    data_parallel: int
    samples_per_update: int
    """Episodes of one optimizer update, over all ranks."""

    @property
    def train(self) -> int:
        return self.train_nodes * self.train_per_node


def is_colocated(spec: RunSpec) -> bool:
    return spec.backend.engine.placement is Placement.COLOCATED


def num_engines(spec: RunSpec) -> int:
    return max(1, geometry(spec).rollout // spec.backend.engine.tensor_parallel)


def geometry(spec: RunSpec) -> Geometry:
    """Solve for Slime's numbers; they mean something where `geometry_refusals` is empty."""
    per_node, training = spec.hardware.accelerators_per_node, spec.training
    total = per_node * spec.hardware.num_nodes
    apart = spec.backend.engine.accelerators or 0
    train = total - apart
    nodes = max(1, -(-train // max(1, per_node)))
    return Geometry(
        train_nodes=nodes,
        train_per_node=train // nodes,
        rollout=total if is_colocated(spec) else apart,
        data_parallel=max(1, train // _model_parallel(spec)),
        samples_per_update=training.prompts_per_step * training.group_size // training.updates_per_step,
    )


def geometry_refusals(spec: RunSpec) -> list[Refusal]:
    """What the pinned versions would refuse only once the accelerators are taken."""
    return [*_layout(spec), *_network(spec), *_experts(spec), *_batches(spec)]


def _model_parallel(spec: RunSpec) -> int:
    parallel = spec.backend.parallel
    return parallel.tensor * parallel.pipeline * parallel.context


def _layout(spec: RunSpec) -> Iterator[Refusal]:
    engine, hardware = spec.backend.engine, spec.hardware
    total = hardware.accelerators_per_node * hardware.num_nodes
    train = total - (engine.accelerators or 0)
    if train < 1:
        yield Refusal(
            "backend.engine.accelerators",
            f"{engine.accelerators} for the engines leave none of {hardware.name}'s {total} to train; lower it",
        )
        return
    if train > hardware.accelerators_per_node and train % hardware.accelerators_per_node:
        yield Refusal(
            "backend.engine.accelerators",
            f"Slime trains on equally many accelerators of each node, and {train} are not whole nodes of"
            f" {hardware.accelerators_per_node}; give the engines whole nodes, or train on one node",
        )
    rollout = geometry(spec).rollout
    if rollout % engine.tensor_parallel:
        yield Refusal(
            "backend.engine.tensor_parallel",
            f"{rollout} accelerators are not whole engines of {engine.tensor_parallel};"
            f" the nearest that divides them is {_nearest_divisor(rollout, engine.tensor_parallel)}",
        )
    if train % _model_parallel(spec):
        yield Refusal(
            "backend.parallel",
            f"tensor x pipeline x context = {_model_parallel(spec)} does not divide the {train} accelerators"
            " that train; lower one of them",
        )


def _network(spec: RunSpec) -> Iterator[Refusal]:
    parallel, shape = spec.backend.parallel, spec.model.architecture
    if shape is None:
        return
    tensor = parallel.tensor
    if shape.num_heads % tensor or (shape.num_kv_heads % tensor and tensor % shape.num_kv_heads):
        yield Refusal(
            "backend.parallel.tensor",
            f"{tensor} does not fit {shape.num_heads} heads and {shape.num_kv_heads} key-value heads of"
            f" {spec.model.name}; choose a divisor of both",
        )
    if shape.num_layers % parallel.pipeline:
        yield Refusal(
            "backend.parallel.pipeline",
            f"{shape.num_layers} layers do not divide by {parallel.pipeline};"
            f" the nearest that does is {_nearest_divisor(shape.num_layers, parallel.pipeline)}",
        )


def _experts(spec: RunSpec) -> Iterator[Refusal]:
    parallel, shape = spec.backend.parallel, spec.model.architecture
    if parallel.expert == 1:
        return
    if shape is None or shape.num_experts is None:
        yield Refusal("backend.parallel.expert", f"{spec.model.name} has no experts; set it to 1")
        return
    if shape.num_experts % parallel.expert:
        yield Refusal(
            "backend.parallel.expert",
            f"{shape.num_experts} experts do not divide by {parallel.expert};"
            f" the nearest that does is {_nearest_divisor(shape.num_experts, parallel.expert)}",
        )
    train = geometry(spec).train
    if train % (parallel.expert * parallel.pipeline):
        yield Refusal(
            "backend.parallel.expert",
            f"expert x pipeline = {parallel.expert * parallel.pipeline} does not divide the {train} accelerators"
            " that train; lower it",
        )


def _batches(spec: RunSpec) -> Iterator[Refusal]:
    training, numbers = spec.training, geometry(spec)
    episodes = training.prompts_per_step * training.group_size
    if episodes % training.updates_per_step:
        yield Refusal(
            "training.updates_per_step",
            f"prompts_per_step x group_size = {episodes} episodes do not divide by it, and Slime drops the rest;"
            f" the nearest that does is {_nearest_divisor(episodes, training.updates_per_step)}",
        )
        return
    share, left = divmod(numbers.samples_per_update, numbers.data_parallel)
    if left or not share:
        # Megatron's calculator wants this with packed micro-batches too, where Slime itself would not.
        yield Refusal(
            "training.prompts_per_step",
            f"the {numbers.samples_per_update} episodes of an update do not divide by the data-parallel size"
            f" {numbers.data_parallel}; change prompts_per_step, group_size, updates_per_step or backend.parallel",
        )
    elif training.max_tokens_per_micro_batch is None and share % training.micro_batch_size:
        yield Refusal(
            "training.micro_batch_size",
            f"{training.micro_batch_size} does not divide the {share} episodes of one rank and update;"
            f" the nearest that does is training.micro_batch_size={_nearest_divisor(share, training.micro_batch_size)}",
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    legal = [n for n in range(1, number + 1) if number % n == 0]
    return min(legal, key=lambda n: (abs(n - wanted), n))
