"""TRL's capabilities for a spec, derived from its rows (one row per field)."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends.trl.control.overrides import override_refusals
from xp.backends.trl.control.rows import ROWS
from xp.planning import rows
from xp.planning.backend import Meaning, Refusal
from xp.planning.batch import batch_refusals
from xp.planning.rows import Native
from xp.spec import RunSpec


def refusals(spec: RunSpec) -> list[Refusal]:
    """All refusals of the spec."""
    found = rows.refusals(ROWS, spec)
    # The batch shape and the keys have a meaning only for a supported layout.
    return found or [*batch_refusals(spec), *override_refusals(spec, owners(spec))]


def owners(spec: RunSpec) -> dict[str, str]:
    """Key of GRPOConfig -> its field; empty if the key is the same for every run."""
    return rows.owners(ROWS, spec)


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Key path of each leaf field -> its support."""
    return rows.meanings(ROWS, spec, refusals(spec), _written)


def _written(keys: Native) -> str:
    return ", ".join(f"{key}={value}" for key, value in keys.items())
