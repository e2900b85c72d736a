"""Check that a spec fits its accelerators, the cheapest change that makes it fit, and the lines of a plan."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xp.fields.field import Refusal
from xp.fields.shared import has_kl, is_megatron, is_on_cpu, network_fields
from xp.lib.models.network import COUNTED, MIXED
from xp.lib.nested import set_at
from xp.lib.text import as_yaml
from xp.planning.backend import spec_refusals
from xp.planning.memory.estimate import (
    BY_LENGTH,
    ENGINE_OVERHEAD,
    GIB,
    MOVED,
    OVERHEAD,
    MemoryEstimate,
    capacity_of,
    draft_shape,
    engine_stays_awake,
    estimate,
    fine_tuning,
    loaded_teacher,
    teacher_shape,
)
from xp.planning.memory.lengths import EpisodeLengths, at_limit, expected
from xp.planning.memory.pictures import seen_by
from xp.planning.memory.weights import weights_of
from xp.spec import RunSpec, Strategy
from xp.spec.launcher import LauncherName

SHARE = "an engine's weights"
"""Part that must fit the engine's share of an accelerator, not the whole of it."""
LARGER = "choose a larger hardware option or a smaller model"
STATES = ("weights", "gradients", "optimizer")
"""Parts of an estimate that do not depend on the episodes."""
MOST = 3
"""Largest number of single changes that are proposed."""


class MemoryVerdict(StrEnum):
    """Result of the check whether a spec fits."""

    FITS = "fits"
    """Fits with every episode at its limit."""
    LIKELY = "fits as expected"
    """Fits with the expected lengths, but not with every episode of a micro-batch at its limit."""
    UNLIKELY = "does not fit as expected"
    IMPOSSIBLE = "cannot fit"
    """Does not fit even with empty episodes."""


@dataclass(frozen=True)
class Lever:
    """A change that makes a spec fit."""

    changes: Mapping[str, Any]
    """Key -> value."""
    headroom: float
    """Free bytes after the change."""

    def __str__(self) -> str:
        return " ".join(
            shlex.quote(f"{key}={as_yaml(value)}") for key, value in self.changes.items()
        )


class Work(StrEnum):
    """Use of the accelerators."""

    TRAINING = "training"
    FINE_TUNING = "fine-tuning"

    def of(self, spec: RunSpec) -> RunSpec:
        """The spec as `estimate` takes it."""
        if self is Work.FINE_TUNING:
            return fine_tuning(spec)
        return spec


def works(spec: RunSpec, *, trains: bool = True) -> tuple[Work, ...]:
    """Uses that are estimated: none without accelerators or for a network that cannot be counted; a fine-tuning if there
    is one.

    Args:
        spec: the run.
        trains: False if it only fine-tunes.
    """
    shape = spec.model.architecture
    if not _has_accelerators(spec) or shape is None or shape.model_type in MIXED:
        return ()
    return (*([Work.TRAINING] * trains), *([Work.FINE_TUNING] * (spec.sft.data is not None)))


@dataclass(frozen=True)
class MemoryFit:
    """The verdict, and the estimates behind it."""

    expected: MemoryEstimate
    worst: MemoryEstimate
    """Estimate with every episode at its limit."""
    lengths: EpisodeLengths
    """Lengths of `expected`."""
    capacity: float
    """Bytes of one accelerator."""
    levers: tuple[Lever, ...]
    """The cheapest changes, alone or together, that make the worst case fit, or the expected case where that does not
    fit; empty if everything fits, or if no change helps."""

    @property
    def headroom(self) -> float:
        """Free bytes in the expected case."""
        return headroom(self.expected, self.capacity)

    @property
    def worst_headroom(self) -> float:
        """Free bytes in the worst case."""
        return min(self.headroom, headroom(self.worst, self.capacity))

    @property
    def verdict(self) -> MemoryVerdict:
        if self.worst_headroom >= 0:
            return MemoryVerdict.FITS
        if self.headroom >= 0:
            return MemoryVerdict.LIKELY
        if impossible_by(self.expected, self.capacity) is not None:
            return MemoryVerdict.IMPOSSIBLE
        return MemoryVerdict.UNLIKELY

    def __str__(self) -> str:
        ways = [f"{lever} ({lever.headroom / GIB:.1f} GiB to spare)" for lever in self.levers]
        fix = ", or ".join(ways) or LARGER
        match self.verdict:
            case MemoryVerdict.FITS:
                return f"fits with {_interval(self.worst_headroom, self.headroom)} GiB to spare"
            case MemoryVerdict.LIKELY:
                return (
                    f"fits with {self.headroom / GIB:.1f} GiB to spare as expected; would not fit by"
                    f" {-self.worst_headroom / GIB:.1f} GiB if all episodes of a micro-batch were at their limit;"
                    f" safe with {fix}"
                )
            case _:
                return (
                    f"would not fit by {-self.headroom / GIB:.1f} GiB as expected; cheapest: {fix}"
                )


def fit(spec: RunSpec, outputs: Path | None = None, work: Work = Work.TRAINING) -> MemoryFit:
    """Checks whether a spec fits its accelerators. Its architecture must be known.

    Args:
        spec: the run.
        outputs: the outputs root, whose task sets and earlier runs show lengths. None means that they are assumed.
        work: the stage that is checked.
    """
    lengths = expected(spec, outputs)
    capacity = capacity_of(spec)
    likely = estimate(work.of(spec), lengths)
    worst = estimate(work.of(spec))
    fits = headroom(likely, capacity) >= 0
    levers: tuple[Lever, ...] = ()
    if not fits or headroom(worst, capacity) < 0:
        levers = tuple(_levers(spec, capacity, at_limit(spec) if fits else lengths, work))
    return MemoryFit(likely, worst, lengths, capacity, levers)


def impossible_by(estimated: MemoryEstimate, capacity: float) -> tuple[str, float] | None:
    """Returns the part that exceeds the memory for all lengths of episodes, and by how many bytes. None means that none
    does.

    The assumed `OVERHEAD` is not counted.
    """
    fixed = (
        sum(size for name, size in estimated.training.items() if name not in BY_LENGTH) - OVERHEAD
    )
    if fixed > capacity:
        return "weights, gradients and optimizer", fixed - capacity
    if estimated.generation and estimated.kv_room + ENGINE_OVERHEAD * estimated.engine_tensor < 0:
        return (
            SHARE,
            -estimated.kv_room / estimated.engine_tensor - ENGINE_OVERHEAD,
        )
    return None


def memory_refusals(spec: RunSpec, *, trains: bool = True) -> Iterator[Refusal]:
    """Refuses what fits with no lengths of episodes; yields nothing for an unknown network.

    Args:
        spec: the run.
        trains: False if it only fine-tunes.
    """
    shape = spec.model.architecture
    if is_on_cpu(spec) and shape is not None and shape.model_type not in MIXED:
        yield from _cpu_refusals(spec)
    capacity = capacity_of(spec)
    for work in works(spec, trains=trains):
        estimated = estimate(work.of(spec))
        # The rest comes and goes, and may be paged.
        size = sum(part for name, part in estimated.host.items() if name != MOVED)
        if size > spec.hardware.memory_gb * 1e9:
            yield Refusal(
                "hardware.memory_gb",
                f"{work}: {_host_parts(estimated)} of host memory are"
                f" {size / 1e9 - spec.hardware.memory_gb:.0f} GB more than a machine's {spec.hardware.memory_gb:g} GB; set"
                " hardware.memory_gb to what the machines have, use more machines, or keep less on the host"
                " (backend.parallel)",
            )
        reason = impossible_by(estimated, capacity)
        if reason is None:
            continue
        what, excess = reason
        room = f"the {capacity / GIB:.0f} GiB of one accelerator"
        if what == SHARE:
            room = f"its share (backend.engine.memory_fraction) of {room}"
        levers = " or ".join(map(str, fit(spec, work=work).levers))
        fix = f"set {levers}" if levers else LARGER
        yield Refusal(
            "hardware.accelerator_memory_gb",
            f"{work}: {what} need {excess / GIB:.1f} GiB more than {room}, even with empty episodes; {fix}",
        )


def _cpu_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses weights, gradients and moments that a CPU's memory cannot hold: this machine's, where the run is here."""
    import psutil

    capacity = spec.hardware.memory_gb
    if spec.launcher.name is LauncherName.LOCAL:
        capacity = max(capacity, psutil.virtual_memory().total / 1e9)
    states = {name: size / 1e9 for name, size in estimate(spec).training.items() if name in STATES}
    size = sum(states.values())
    if size > capacity:
        parts = ", ".join(f"{name} {part:.1f}" for name, part in states.items())
        yield Refusal(
            "hardware.memory_gb",
            f"{parts} GB are more than the machine's {capacity:.0f} GB by {size - capacity:.0f} GB; choose a smaller"
            " model (model=tiny is for a CPU), model.lora, or hardware=... with accelerators",
        )


def _host_parts(estimated: MemoryEstimate) -> str:
    return ", ".join(f"{size / 1e9:.0f} GB {name}" for name, size in estimated.host.items())


def headroom(estimated: MemoryEstimate, capacity: float) -> float:
    """Free bytes in the tightest phase; an engine must have room for at least one whole episode."""
    phases = [capacity - estimated.training_peak]
    if estimated.generation:
        phases += [capacity - estimated.generation_peak, estimated.kv_room - estimated.kv_episode]
    return min(phases)


def _levers(spec: RunSpec, capacity: float, lengths: EpisodeLengths, work: Work) -> Iterator[Lever]:
    """Single changes that make the spec fit, cheapest first; else one lever with the cheapest changes that together
    do."""
    alone = list[Lever]()
    together = dict[str, Any]()
    for changes in _changes(spec, work):
        if any(changes.keys() == change.changes.keys() for change in alone):
            continue
        room = _room_with(spec, changes, capacity, lengths, work)
        if room is not None and room >= 0:
            alone.append(Lever(changes, room))
    if alone:
        yield from alone[:MOST]
        return
    for changes in _changes(spec, work):
        room = _room_with(spec, together | changes, capacity, lengths, work)
        if room is None:
            continue
        together |= changes
        if room >= 0:
            yield Lever(together, room)
            return


def _changes(spec: RunSpec, work: Work) -> Iterator[dict[str, Any]]:
    """Changes in the order of their cost: nothing, some speed, much speed, another experiment."""
    training = spec.training
    parallel = spec.backend.parallel
    engine = spec.backend.engine
    is_training = work is Work.TRAINING
    section, sizes = ("training", training) if is_training else ("sft", spec.sft)
    has_experts = network_fields(spec).get("num_experts") is not None
    if not training.gradient_checkpointing:
        yield {"training.gradient_checkpointing": True}
    has_other = is_training and (has_kl(spec) or spec.algorithm.distill is not None)
    if has_other and not parallel.offload_reference:
        yield {"backend.parallel.offload_reference": True}
    for divisor in (2, 4, 8, 16, 32):
        if sizes.micro_batch_size >= divisor:
            yield {f"{section}.micro_batch_size": max(1, sizes.micro_batch_size // divisor)}
    budget = sizes.max_tokens_per_micro_batch
    longest = training.max_prompt_tokens + training.max_response_tokens
    for divisor in (2, 4, 8):
        if budget is not None and budget // divisor >= longest:
            yield {f"{section}.max_tokens_per_micro_batch": budget // divisor}
    for step in (-0.1, -0.2, 0.1, 0.2, 0.3):
        if is_training and 0.2 <= engine.memory_fraction + step <= 0.9:
            yield {"backend.engine.memory_fraction": round(engine.memory_fraction + step, 2)}
    if parallel.strategy is Strategy.DDP:
        yield {"backend.parallel.strategy": Strategy.FSDP2.value}
    for size in (2, 4, 8):
        if is_training and size > engine.tensor_parallel:
            yield {"backend.engine.tensor_parallel": size}
        if is_megatron(spec) and size > parallel.tensor:
            yield {"backend.parallel.tensor": size}
        if is_megatron(spec) and size > parallel.expert and has_experts:
            yield {"backend.parallel.expert": size}
    if is_megatron(spec) and not parallel.cpu_optimizer:
        yield {"backend.parallel.cpu_optimizer": True}
    if not parallel.offload_optimizer:
        yield {"backend.parallel.offload_optimizer": True}
    if not parallel.offload_parameters:
        yield {"backend.parallel.offload_parameters": True}
    if spec.model.lora is None:
        yield {"model.lora": {"rank": 32, "alpha": 64.0, "dropout": 0.0, "target_modules": None}}


def _room_with(
    spec: RunSpec, changes: Mapping[str, Any], capacity: float, lengths: EpisodeLengths, work: Work
) -> float | None:
    """Headroom after the changes; None where they are not legal together."""
    container = spec.model_dump(mode="json")
    for path, value in changes.items():
        set_at(container, path, value)
    try:
        changed = RunSpec.model_validate_json(json.dumps(container))
    except ValidationError:
        return None
    if spec_refusals(changed):
        return None
    return headroom(estimate(work.of(changed), lengths), capacity)


def memory_lines(spec: RunSpec, outputs: Path | None = None, *, trains: bool = True) -> list[str]:
    """The interval from the expected to the worst case in both phases, the verdict, and changes that make it fit.

    The list is empty for a run without accelerators.

    Args:
        spec: the run.
        outputs: the outputs root, whose task sets and earlier runs show lengths. None means that they are assumed.
        trains: False if it only fine-tunes.
    """
    if not _has_accelerators(spec):
        return []
    shape = spec.model.architecture
    if shape is None:
        return [
            f"memory: not estimated: the config.json of {spec.model.path} is neither on this machine nor available"
            " from the hub"
        ]
    if shape.model_type in MIXED:
        return [f"memory: not estimated: xp does not count the layers of {shape.model_type}"]
    plainly = f", counted as a plain decoder, which {shape.model_type} is not"
    uncounted = "" if shape.model_type in COUNTED else plainly
    lines = [
        f"memory per accelerator, from the expected case to every episode at its limit"
        f" ({weights_of(shape).total / 1e9:.2f} B parameters{uncounted}; arithmetic, with measured bytes of a logit):",
        *(_training_lines(spec, outputs) if trains else ()),
    ]
    if Work.FINE_TUNING in works(spec):
        tuning = fit(spec, outputs, Work.FINE_TUNING)
        likely = tuning.expected
        worst = tuning.worst
        lines += [
            f"  fine-tuning {_interval(likely.training_peak, worst.training_peak)} of {tuning.capacity / GIB:.0f} GiB,"
            f" in a micro-batch of {_interval(likely.tokens, worst.tokens, 1, 0)} tokens:"
            f" {_parts(likely.training, worst.training)}",
            f"  {tuning}",
        ]
    return lines


def _training_lines(spec: RunSpec, outputs: Path | None) -> list[str]:
    result = fit(spec, outputs)
    capacity = result.capacity / GIB
    likely = result.expected
    worst = result.worst
    lines = [
        f"  micro-batch {_interval(likely.tokens, worst.tokens, 1, 0)} tokens ({result.lengths.source})",
        f"  training {_interval(likely.training_peak, worst.training_peak)} of {capacity:.0f} GiB:"
        f" {_parts(likely.training, worst.training)}",
    ]
    if likely.generation:
        lines.append(
            f"  generation {likely.generation_peak / GIB:.1f} of {capacity:.0f} GiB:"
            f" {_parts(likely.generation, worst.generation)};"
            f" an engine's KV cache of {max(0.0, worst.kv_room) / GIB:.1f} GiB holds {worst.episodes_at_once}"
            f" of its {worst.episodes_per_engine} episodes at full length"
        )
    if sum(worst.host.values()) >= 1e9:
        lines.append(
            f"  host {_host_parts(worst)}, of {spec.hardware.memory_gb:,.0f} GB of each machine"
        )
    if engine_stays_awake(spec):
        lines.append("  both fit at once: the engine stays awake during an update")
    if spec.model.images is not None and seen_by(spec) is None:
        lines.append(
            f"  pictures not counted: the config.json of {spec.model.path} is not available, or describes no layers of a"
            " vision part"
        )
    distill = loaded_teacher(spec)
    if distill is not None and teacher_shape(spec) is None:
        lines.append(
            f"  teacher not counted: the config.json of {distill.teacher} is not available"
        )
    speculative = spec.backend.engine.speculative
    if speculative is not None and speculative.model is not None and draft_shape(spec) is None:
        lines.append(
            f"  draft not counted: the config.json of {speculative.model} is not available"
        )
    lines.append(f"  {result}")
    return lines


def memory_json(
    spec: RunSpec, outputs: Path | None = None, *, trains: bool = True
) -> dict[str, Any] | None:
    """The same as JSON values, sizes in bytes; None where nothing is estimated."""
    fits: dict[str, Any] = {}
    for work in works(spec, trains=trains):
        values = _fit_json(fit(spec, outputs, work))
        fits |= values if work is Work.TRAINING else {"fine_tuning": values}
    return fits or None


def _fit_json(result: MemoryFit) -> dict[str, Any]:
    return {
        "verdict": result.verdict.value,
        "capacity": result.capacity,
        "lengths": vars(result.lengths),
        "expected": _case(result.expected, result.headroom),
        "worst": _case(result.worst, result.worst_headroom),
        "ways_out": [
            {"changes": dict(lever.changes), "headroom": lever.headroom} for lever in result.levers
        ],
    }


def _has_accelerators(spec: RunSpec) -> bool:
    return not is_on_cpu(spec) and bool(spec.hardware.accelerator_memory_gb)


def _case(estimated: MemoryEstimate, free: float) -> dict[str, Any]:
    return {
        "micro_batch_tokens": estimated.tokens,
        "training": dict(estimated.training),
        "training_peak": estimated.training_peak,
        "generation": dict(estimated.generation),
        "generation_peak": estimated.generation_peak,
        "host": dict(estimated.host),
        "headroom": free,
    }


def _parts(likely: Mapping[str, float], worst: Mapping[str, float]) -> str:
    return ", ".join(
        f"{name} {_interval(size, worst[name] if name in BY_LENGTH else size)}"
        for name, size in likely.items()
        if worst[name] >= 0.05 * GIB
    )


def _interval(low: float, high: float, unit: float = GIB, digits: int = 1) -> str:
    """Two rounded numbers with "to" between them, or one if both are equal."""
    return " to ".join(dict.fromkeys(f"{number / unit:,.{digits}f}" for number in (low, high)))
