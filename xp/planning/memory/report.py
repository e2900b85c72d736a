"""The few lines of a plan about memory."""

from __future__ import annotations

from collections.abc import Mapping

from xp.models.network import COUNTED
from xp.planning.memory.estimate import shape_of
from xp.planning.memory.fit import fit
from xp.planning.memory.weights import weights_of
from xp.spec import Architecture, BuildSpec, RunSpec

GB = 1e9


def memory_lines(spec: RunSpec) -> list[str]:
    """Peak of both phases, headroom, and the way out where there is none; nothing for a run without accelerators."""
    if spec.hardware.accelerator == "cpu" or not spec.hardware.accelerator_memory_gb:
        return []
    shape = shape_of(spec)
    if shape is None:
        return [
            f"memory: not estimated, since nothing here says what network {spec.model.path} is: its config.json is"
            " neither on this machine nor to be had from the hub"
        ]
    found = fit(spec)
    capacity, estimate = found.capacity / GB, found.estimate
    lines = [
        f"memory per accelerator (arithmetic, not calibrated, every episode as long as it may be;"
        f" {weights_of(shape).total / 1e9:.2f} B parameters{_uncounted(shape)}):",
        f"  training {estimate.training_peak / GB:.1f} of {capacity:.0f} GB: {_parts(estimate.training)}",
    ]
    if estimate.generation:
        lines.append(
            f"  generation {estimate.generation_peak / GB:.1f} of {capacity:.0f} GB: {_parts(estimate.generation)};"
            f" an engine's KV cache of {max(0.0, estimate.kv_room) / GB:.1f} GB holds {estimate.episodes_at_once}"
            f" of its {estimate.episodes_per_engine} episodes at full length"
        )
    if found.headroom >= 0:
        lines.append(f"  fits with {found.headroom / GB:.1f} GB to spare")
    else:
        ways = [f"{lever} ({lever.headroom / GB:.1f} GB to spare)" for lever in found.levers]
        way_out = f"cheapest: {', or '.join(ways)}" if ways else "choose a larger hardware option or a smaller model"
        lines.append(f"  [bold]would not fit by {-found.headroom / GB:.1f} GB[/bold]; {way_out}")
    return lines


def _uncounted(shape: Architecture | BuildSpec) -> str:
    """A note on a family with parts that the count does not know."""
    if isinstance(shape, BuildSpec) or shape.model_type in COUNTED:
        return ""
    return f", counted as a plain decoder, which {shape.model_type} is not"


def _parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items() if size >= 0.05 * GB)
