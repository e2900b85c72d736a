"""Check that a spec fits its accelerators, and the cheapest change that makes it fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xp.backends.batch import batch_refusals
from xp.errors import XpError
from xp.planning.memory.estimate import MemoryEstimate, estimate
from xp.spec import RunSpec, Strategy


@dataclass(frozen=True)
class Lever:
    """A change that makes a spec fit."""

    changes: Mapping[str, Any]
    """Key -> value."""
    headroom: float
    """Bytes to spare with it."""

    def __str__(self) -> str:
        return " ".join(f"{key}={_yaml(value)}" for key, value in self.changes.items())


@dataclass(frozen=True)
class MemoryFit:
    """The verdict."""

    estimate: MemoryEstimate
    capacity: float
    """Bytes of one accelerator."""
    levers: tuple[Lever, ...]
    """The cheapest changes that make a spec fit, alone or together; empty if it fits, or if none does."""

    @property
    def headroom(self) -> float:
        return headroom(self.estimate, self.capacity)


def fit(spec: RunSpec) -> MemoryFit:
    """Judge a spec whose architecture is known."""
    found, capacity = estimate(spec), spec.hardware.accelerator_memory_gb * 1e9
    is_fine = headroom(found, capacity) >= 0
    return MemoryFit(found, capacity, () if is_fine else tuple(_levers(spec, capacity)))


def headroom(found: MemoryEstimate, capacity: float) -> float:
    """Bytes that are left in the tightest phase; an engine must hold at least one whole episode."""
    phases = [capacity - found.training_peak]
    if found.generation:
        phases += [capacity - found.generation_peak, found.kv_room - found.kv_episode]
    return min(phases)


def _levers(spec: RunSpec, capacity: float, limit: int = 3) -> Iterator[Lever]:
    """Single changes that mend it, cheapest first; if there is none, all those before the one that does, together."""
    alone, together = [], dict[str, Any]()
    for changes in _changes(spec):
        if (room := _room_with(spec, changes, capacity)) is not None and room >= 0:
            alone.append(Lever(changes, room))
    if alone:
        yield from alone[:limit]
        return
    for changes in _changes(spec):
        if _room_with(spec, together | changes, capacity) is None:
            continue
        together |= changes
        room = _room_with(spec, together, capacity)
        if room is not None and room >= 0:
            yield Lever(together, room)
            return


def _changes(spec: RunSpec) -> Iterator[dict[str, Any]]:
    """Levers in the order of what they cost: nothing, some speed, much speed, another experiment."""
    training, parallel, engine = spec.training, spec.backend.parallel, spec.backend.engine
    if not training.gradient_checkpointing:
        yield {"training.gradient_checkpointing": True}
    if not parallel.offload_reference and training.kl_coef > 0:
        yield {"backend.parallel.offload_reference": True}
    for divisor in (2, 4, 8, 16, 32):
        if training.micro_batch_size >= divisor:
            yield {"training.micro_batch_size": max(1, training.micro_batch_size // divisor)}
    for step in (-0.1, -0.2, 0.1, 0.2, 0.3):
        if 0.2 <= engine.memory_fraction + step <= 0.9:
            yield {"backend.engine.memory_fraction": round(engine.memory_fraction + step, 2)}
    if parallel.strategy is Strategy.DDP:
        yield {"backend.parallel.strategy": Strategy.FSDP2.value}
    for size in (2, 4, 8):
        if size > engine.tensor_parallel:
            yield {"backend.engine.tensor_parallel": size}
        if parallel.strategy is Strategy.MEGATRON and size > parallel.tensor:
            yield {"backend.parallel.tensor": size}
        if parallel.strategy is Strategy.MEGATRON and size > parallel.expert and _has_experts(spec):
            yield {"backend.parallel.expert": size}
    if not parallel.offload_optimizer:
        yield {"backend.parallel.offload_optimizer": True}
    if not parallel.offload_parameters:
        yield {"backend.parallel.offload_parameters": True}
    if spec.model.lora is None:
        yield {"model.lora": {"rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": None}}


def _has_experts(spec: RunSpec) -> bool:
    return spec.model.architecture is not None and spec.model.architecture.num_experts is not None


def _room_with(spec: RunSpec, changes: Mapping[str, Any], capacity: float) -> float | None:
    """Headroom after the changes; None where they are not legal together."""
    from xp.backends.base import render_module
    from xp.compose import from_container

    container = spec.model_dump(mode="json")
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = container
        for part in parents:
            node = node[part]
        node[last] = value
    try:
        changed = from_container(container)
    except XpError:
        return None
    if batch_refusals(changed) or render_module(changed).refusals(changed):
        return None
    return headroom(estimate(changed), capacity)


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "'{" + ", ".join(f"{key}: {_yaml(child)}" for key, child in value.items()) + "}'"
    return str(value)
