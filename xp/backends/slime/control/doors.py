"""Servers of a Slime run that want no key."""

from __future__ import annotations

from xp.spec import RunSpec


def open_doors(spec: RunSpec) -> tuple[str, ...]:
    """Slime's own requests to its engines and router say no key, so that these can be given none (docs/security.md)."""
    where = (
        "on 127.0.0.1: other users of the machine" if spec.hardware.num_nodes == 1 else "on a cluster's network: others"
    )
    return (f"SGLang and its router need no key {where} can replace the weights and read the generated text",)
