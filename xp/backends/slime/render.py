"""RunSpec -> Slime: not built yet; it refuses every spec with one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xp.backends.base import Places, Refusal
from xp.job import Stage
from xp.spec import RunSpec


def refusals(spec: RunSpec) -> Sequence[Refusal]:
    """Always one: nothing is rendered for Slime yet."""
    return [Refusal("backend", f"backend={spec.backend.name} is not built yet; backend=trl is")]


def stages(spec: RunSpec, places: Places) -> tuple[Stage, ...]:
    """Never reached: `refusals` refuses every spec."""
    raise NotImplementedError(f"{spec.backend.name} at {places.run}")


def evaluation(spec: RunSpec, places: Places, models: Mapping[str, str], needs: tuple[str, ...]) -> Stage:
    """Never reached."""
    raise NotImplementedError(f"{spec.backend.name} at {places.run}: {models} after {needs}")


def checkpoint(spec: RunSpec, places: Places, step: int) -> str:
    """Never reached."""
    raise NotImplementedError(f"{spec.backend.name} at {places.run}: step {step}")
