"""Slime's capabilities for a spec, derived from its rows (one row per field)."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends.slime.control.architecture import architecture_refusals, family_refusal
from xp.backends.slime.control.flags import flags_of, words
from xp.backends.slime.control.overrides import override_refusals
from xp.backends.slime.control.rows import ROWS
from xp.planning import rows
from xp.planning.backend import Meaning, Refusal
from xp.planning.batch import batch_refusals
from xp.planning.rows import Native
from xp.spec import RunSpec


def refusals(spec: RunSpec) -> list[Refusal]:
    """All refusals of the spec."""
    if spec.hardware.accelerator == "cpu":
        return [
            Refusal(
                "hardware",
                "Slime trains on GPUs only: choose for example hardware=h100x8; `make rehearse-slime` plays its"
                " rollouts on a CPU, where checkouts of Slime and Megatron-LM are given",
            )
        ]
    if (family := family_refusal(spec)) is not None:
        return [family]
    found = [*architecture_refusals(spec), *rows.refusals(ROWS, spec)]
    # The batch shape and the flags have a meaning only for a supported layout.
    return found or [*batch_refusals(spec), *override_refusals(spec, owners(spec))]


def owners(spec: RunSpec) -> dict[str, str]:
    """Flag -> its field, even if this spec does not write it; empty if the flag is the same for every run."""
    # xp uses this flag for the critic; a user's own function needs another algorithm.
    own_function = "algorithm=custom algorithm.advantage_fn=package.module:function"
    return rows.owners(ROWS, spec) | {"--custom-advantage-function-path": own_function}


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Key path of each leaf field -> its support."""
    return rows.meanings(ROWS, spec, refusals(spec), _written)


def _written(flags: Native) -> str:
    return " ".join(words(flags_of(flags)))
