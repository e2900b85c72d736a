"""Checks the user's native keys: refuses keys that xp renders or answers itself, or that the pinned classes lack."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest
from xp.planning.native_keys import NativeKeys
from xp.planning.rows import Refusal
from xp.spec import RunSpec

ANSWERS = (Path(__file__).with_name("native_keys.toml"),)
SFT_ANSWERS = (Path(__file__).with_name("sft_keys.toml"), *ANSWERS)


@cache
def catalog(name: str = "catalog.json") -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig or SFTConfig, from tools.catalogs.trl."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name(name).read_text())["fields"]
    return fields


def override_refusals(
    spec: RunSpec, keys: NativeKeys, overrides: Mapping[str, Any], known: Mapping[str, Any], owner: str
) -> Iterator[Refusal]:
    """Faults of the user's own keys.

    Args:
        spec: the spec.
        keys: what the stage's keys mean.
        overrides: the user's own.
        known: catalog of the class.
        owner: name of the class.
    """
    for key in overrides:
        fault = keys.fault(key, spec) if key in known else f"{owner} has no such field{nearest(key, known)}"
        if fault is not None:
            yield Refusal(f"{keys.place}.{key}", fault)
