"""Checks the user's native keys: refuses keys that xp renders, or that the pinned GRPOConfig lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest
from xp.planning.backend import Refusal
from xp.spec import RunSpec


@cache
def catalog() -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig, from tools.catalogs.trl."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())["fields"]
    return fields


def override_refusals(spec: RunSpec, owned: Mapping[str, str]) -> Iterator[Refusal]:
    """Faults of `backend.overrides`.

    Args:
        spec: the spec, with its overrides.
        owned: native key -> its field.
    """
    for key in spec.backend.overrides:
        if key in owned:
            way_out = f"set {owned[key]}" if owned[key] else "it has the same value for every run"
            yield Refusal(f"backend.overrides.{key}", f"xp renders this key itself; {way_out}")
        elif key not in catalog():
            yield Refusal(f"backend.overrides.{key}", f"GRPOConfig has no such field{nearest(key, catalog())}")
