"""Networks that xp cannot write for Megatron; the flags of a network are in xp/fields/architecture.py."""

from __future__ import annotations

from collections.abc import Iterator

from xp.backends.slime.control.flags import Flags, flags_of
from xp.fields.architecture import FAMILIES, LLAMA3, LOADED_ONLY, SHAPE, YARN, network_flags
from xp.fields.field import Refusal
from xp.spec import Architecture, RunSpec
from xp.spec.model import Router


def architecture_flags(shape: Architecture) -> Flags:
    """All flags of the network."""
    return flags_of(
        {name: value for field in SHAPE for name, value in network_flags(field, shape).items()}
    )


def family_refusal(spec: RunSpec) -> Refusal | None:
    """Refusal of a network that xp cannot write for Megatron, after which other faults do not matter; else None."""
    shape = spec.model.architecture
    model = spec.model
    if shape is None:
        return Refusal(
            "model.architecture",
            f"Slime builds the network from it, but the config.json of {model.path} is not on this machine: download"
            " it and set model.path to the directory, or write it into the model's file",
        )
    family = shape.model_type
    if family in LOADED_ONLY:
        return Refusal(
            "model.architecture.model_type",
            f"xp writes no flags of Megatron's for {family}; use backend=skyrl or trl",
        )
    if family not in FAMILIES:
        return Refusal(
            "model.architecture.model_type",
            f"Slime loads the weights of {', '.join(sorted(FAMILIES))}, not of {family};"
            " use backend=skyrl or trl",
        )
    return None


def _is_megatrons(router: Router) -> bool:
    """Returns whether Megatron has such scores: sigmoids are divided by their sum, and they alone have a bias."""
    if router.sigmoid:
        return router.normalized
    return not router.bias


def architecture_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refusals of unsupported properties in a network of a supported family."""
    shape = spec.model.architecture
    assert shape is not None  # family_refusal: refused before
    if not shape.rope_theta.is_integer():
        yield Refusal(
            "model.architecture.rope_theta",
            "Megatron needs a whole number; use backend=skyrl or trl",
        )
    has_yarn = shape.latent_attention is not None and (shape.rope_scaling or "").startswith(YARN)
    if shape.rope_scaling not in (None, LLAMA3) and not has_yarn:
        if shape.latent_attention is None:
            supported = LLAMA3
        else:
            supported = f"{YARN}FACTOR"
        yield Refusal(
            "model.architecture.rope_scaling",
            f"Slime supports only {supported} and would build a different network for {shape.rope_scaling};"
            " use backend=skyrl or trl",
        )
    router = shape.router
    if router is not None and not _is_megatrons(router):
        yield Refusal(
            "model.architecture.router",
            "Megatron divides sigmoid scores by their sum and has a bias for them only, so it would build a different"
            " network; use backend=skyrl or trl",
        )
    if (
        router is not None
        and router.groups > 1
        and (shape.experts_per_token or 0) // router.groups_per_token != 2
    ):
        yield Refusal(
            "model.architecture.router",
            "Megatron scores a group by its best experts_per_token / groups_per_token experts, and the model's own code"
            " by its best two, so it would build a different network; use backend=skyrl or trl",
        )
