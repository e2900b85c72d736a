"""Checks the user's native keys: refuses keys that xp renders, or that the pinned GRPOConfig lacks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest
from xp.planning.backend import Refusal
from xp.planning.rows import Row, not_overridable
from xp.spec import RunSpec


@cache
def catalog() -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig, from tools.catalogs.trl."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())["fields"]
    return fields


OF_ITS_SAMPLING = ("generation_kwargs", "cache_implementation", "chat_template_kwargs")
"""Arguments of TRL's own sampling, which xp's engine replaces."""


def override_refusals(spec: RunSpec, rows: Sequence[Row], owned: Mapping[str, str]) -> Iterator[Refusal]:
    """Faults of `backend.overrides`.

    Args:
        spec: the spec, with its overrides.
        rows: TRL's.
        owned: native key -> its field.
    """
    for key in spec.backend.overrides:
        if (way_out := not_overridable(rows, owned, key)) is not None:
            yield Refusal(f"backend.overrides.{key}", f"xp renders this key itself; {way_out}")
        elif key in OF_ITS_SAMPLING:
            yield Refusal(
                f"backend.overrides.{key}", "no effect: xp renders prompts and draws the tokens; leave it out"
            )
        elif key not in catalog():
            yield Refusal(f"backend.overrides.{key}", f"GRPOConfig has no such field{nearest(key, catalog())}")
