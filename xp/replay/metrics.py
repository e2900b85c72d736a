"""The first number in which two trainings differ: metrics step by step, and weights tensor by tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xp.episode.metrics_file import read_metrics
from xp.errors import ExitCode
from xp.lib.reading import json_of
from xp.lib.verified import DIGESTS

STAGES: Final = ("train", "evaluate_during", "evaluate")
OF_THE_MACHINE: Final = ("time", "attempt", "stage", "step", "gpu", "training/logprob_gap")
"""Beginnings of the names whose values differ between two runs of the same numbers. The gap is the rounding of the
engine, whose batches have the episodes that wait for a turn at that time; tokens and updates do not depend on it."""


def first_metric(before: Path, after: Path) -> tuple[int, str | None]:
    """Number of values that were compared, and the first one that differs, with its step. None means that all have
    equal bits."""
    count = 0
    for stage in STAGES:
        first, second = (
            {line["step"]: line for line in read_metrics(file, stage)} for file in (before, after)
        )
        for step in sorted({*first, *second}):
            one = first.get(step)
            other = second.get(step)
            if one is None or other is None:
                if stage != STAGES[0]:  # a resumed run has evaluations of each attempt
                    continue
                return (
                    count,
                    f"{stage}, step {step}: only in {'the new run' if one is None else 'the recorded run'}",
                )
            for key in sorted({*one, *other}):
                if not key.startswith(OF_THE_MACHINE):
                    count += 1
                    if one.get(key) != other.get(key):
                        return (
                            count,
                            f"{stage}, step {step}: {key}: {one.get(key)!r} -> {other.get(key)!r}",
                        )
    return count, None


def first_tensor(before: Path, after: Path) -> str | None:
    """The first tensor of the trained weights whose bytes differ. None means that all are equal, or one side is not
    here."""
    if not all((place / DIGESTS).is_file() for place in (before, after)):
        return None
    from safetensors import deserialize  # the whole list, without torch

    first, second = (
        json_of(place / DIGESTS, ExitCode.RUN_DIR)["files"] for place in (before, after)
    )
    for name in sorted(name for name in {*first, *second} if name.endswith(".safetensors")):
        if first.get(name) == second.get(name):
            continue
        if not ((before / name).is_file() and (after / name).is_file()):
            return f"weights: {name}: another digest"
        tensors = [dict(deserialize((place / name).read_bytes())) for place in (before, after)]  # type: ignore[no-untyped-call]
        differing = [
            tensor for tensor in sorted(tensors[0]) if tensors[0][tensor] != tensors[1].get(tensor)
        ]
        if differing:
            first_one = differing[0]
        else:
            first_one = "one that only the new run has"
        return f"weights: {name}: {len(differing)} of {len(tensors[0])} tensors, the first is {first_one}"
    return None
