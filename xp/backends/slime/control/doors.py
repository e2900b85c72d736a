"""Servers of a Slime run that need no key."""

from __future__ import annotations

from xp.backends.slime.control.flags import given
from xp.backends.slime.worker import engine_key
from xp.backends.stages.needs import starts_own_ray
from xp.spec import RunSpec


def open_doors(spec: RunSpec) -> tuple[str, ...]:
    """Open servers; none if SGLang and its router have the key of the run's own Ray
    (xp.backends.slime.worker.engine_key)."""
    if starts_own_ray(spec) and engine_key.is_wanted(tuple(given(spec.backend.overrides))):
        return ()
    return (
        "SGLang and its router need no key: whoever reaches them can replace the weights and read the generated text",
    )
