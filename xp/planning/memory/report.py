"""Lines of a plan about memory, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from xp.models.network import COUNTED
from xp.planning.memory.estimate import BY_LENGTH, MemoryEstimate, shape_of
from xp.planning.memory.fit import MemoryFit, MemoryVerdict, fit
from xp.planning.memory.weights import weights_of
from xp.spec import Architecture, BuildSpec, RunSpec

GB = 1e9


def memory_lines(spec: RunSpec, outputs: Path | None = None) -> list[str]:
    """The interval from the expected to the worst case in both phases, the verdict, and changes that make it fit.

    The list is empty for a run without accelerators.

    Args:
        spec: the run.
        outputs: the outputs root, whose task sets and earlier runs show lengths; None: they are assumed.
    """
    if not _has_accelerators(spec):
        return []
    shape = shape_of(spec)
    if shape is None:
        return [
            f"memory: not estimated: the config.json of {spec.model.path} is neither on this machine nor available"
            " from the hub"
        ]
    found = fit(spec, outputs)
    capacity, expected, worst = found.capacity / GB, found.expected, found.worst
    lines = [
        f"memory per accelerator, from the expected case to every episode at its limit"
        f" ({weights_of(shape).total / 1e9:.2f} B parameters{_uncounted(shape)}; arithmetic, with measured bytes of a"
        " logit):",
        f"  micro-batch {_interval(expected.tokens, worst.tokens, 1, 0)} tokens ({found.lengths.source})",
        f"  training {_interval(expected.training_peak, worst.training_peak)} of {capacity:.0f} GB:"
        f" {_parts(expected.training, worst.training)}",
    ]
    if expected.generation:
        lines.append(
            f"  generation {expected.generation_peak / GB:.1f} of {capacity:.0f} GB:"
            f" {_parts(expected.generation, worst.generation)};"
            f" an engine's KV cache of {max(0.0, worst.kv_room) / GB:.1f} GB holds {worst.episodes_at_once}"
            f" of its {worst.episodes_per_engine} episodes at full length"
        )
    return [*lines, *map("  {}".format, _verdict(found))]


def memory_json(spec: RunSpec, outputs: Path | None = None) -> dict[str, Any] | None:
    """The same as JSON values, sizes in bytes; None where nothing is estimated."""
    if not _has_accelerators(spec) or shape_of(spec) is None:
        return None
    found = fit(spec, outputs)
    return {
        "verdict": found.verdict.value,
        "capacity": found.capacity,
        "lengths": vars(found.lengths),
        "expected": _case(found.expected, found.headroom),
        "worst": _case(found.worst, found.worst_headroom),
        "ways_out": [{"changes": dict(one.changes), "headroom": one.headroom} for one in found.levers],
    }


def _has_accelerators(spec: RunSpec) -> bool:
    return spec.hardware.accelerator != "cpu" and bool(spec.hardware.accelerator_memory_gb)


def _case(found: MemoryEstimate, headroom: float) -> dict[str, Any]:
    return {
        "micro_batch_tokens": found.tokens,
        "training": dict(found.training),
        "training_peak": found.training_peak,
        "generation": dict(found.generation),
        "generation_peak": found.generation_peak,
        "headroom": headroom,
    }


def _verdict(found: MemoryFit) -> Iterator[str]:
    ways = [f"{lever} ({lever.headroom / GB:.1f} GB to spare)" for lever in found.levers]
    way_out = ", or ".join(ways) if ways else "choose a larger hardware option or a smaller model"
    match found.verdict:
        case MemoryVerdict.FITS:
            yield f"fits with {_interval(found.worst_headroom, found.headroom)} GB to spare"
        case MemoryVerdict.LIKELY:
            yield (
                f"fits with {found.headroom / GB:.1f} GB to spare as expected; would not fit by"
                f" {-found.worst_headroom / GB:.1f} GB if all episodes of a micro-batch were at their limit;"
                f" safe with {way_out}"
            )
        case _:
            yield f"would not fit by {-found.headroom / GB:.1f} GB as expected; cheapest: {way_out}"


def _uncounted(shape: Architecture | BuildSpec) -> str:
    """A note on a family with parts that are not counted."""
    if isinstance(shape, BuildSpec) or shape.model_type in COUNTED:
        return ""
    return f", counted as a plain decoder, which {shape.model_type} is not"


def _parts(expected: Mapping[str, float], worst: Mapping[str, float]) -> str:
    found = []
    for name, size in expected.items():
        if worst[name] >= 0.05 * GB:
            found.append(f"{name} {_interval(size, worst[name]) if name in BY_LENGTH else f'{size / GB:.1f}'}")
    return ", ".join(found)


def _interval(low: float, high: float, unit: float = GB, digits: int = 1) -> str:
    """Two rounded numbers with "to" between them, or one if both are equal."""
    texts = [f"{number / unit:,.{digits}f}" for number in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
