"""The keys of the pinned GRPOConfig and SFTConfig, and which of them a user can set."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest

TABLE = Path(__file__).with_name("overrides.toml")
SFT_CATALOG = "sft_catalog.json"


@cache
def catalog(name: str = "catalog.json") -> Mapping[str, Any]:
    """Field -> type and default of the pinned GRPOConfig or SFTConfig, from tools.catalogs.trl."""
    fields: Mapping[str, Any] = json.loads(Path(__file__).with_name(name).read_text())["fields"]
    return fields


def class_fault(name: str, known: Mapping[str, Any]) -> Callable[[str, Any], str | None]:
    """Function that returns the fault of a key that a class lacks.

    Args:
        name: name of the class.
        known: its catalog.
    """
    return lambda key, _: (
        None if key in known else f"{name} has no such field{nearest(key, known)}; leave it out"
    )
