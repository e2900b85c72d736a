"""Slime's capabilities for a spec, derived from its rows (one row per field)."""

from __future__ import annotations

from collections.abc import Mapping

from xp.backends import capability
from xp.backends.base import Meaning, Refusal
from xp.backends.batch import batch_refusals
from xp.backends.capability import Native
from xp.backends.slime.control.architecture import architecture_refusals, family_refusal
from xp.backends.slime.control.flags import flags_of, words
from xp.backends.slime.control.overrides import override_refusals
from xp.backends.slime.control.rows import ROWS
from xp.spec import RunSpec


def refusals(spec: RunSpec) -> list[Refusal]:
    """Everything in the spec that this backend cannot do."""
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
    found = [*architecture_refusals(spec), *capability.refusals(ROWS, spec)]
    # The arithmetic, and which flags are rendered, are about the layouts that are left.
    return found or [*batch_refusals(spec), *override_refusals(spec, owners(spec))]


def owners(spec: RunSpec) -> dict[str, str]:
    """Flag -> the field that it comes from, whether this spec writes it or not; empty where every run has the same."""
    # The critic's flag of that name is xp's; a user's own function comes in by another algorithm.
    own_function = "algorithm=custom algorithm.advantage_fn=package.module:function"
    return capability.owners(ROWS, spec) | {"--custom-advantage-function-path": own_function}


def meanings(spec: RunSpec) -> Mapping[str, Meaning]:
    """Leaf field (as a key path) -> what becomes of it."""
    return capability.meanings(ROWS, spec, refusals(spec), _written)


def _written(flags: Native) -> str:
    return " ".join(words(flags_of(flags)))
