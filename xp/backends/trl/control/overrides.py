"""Checks the user's native keys: refuses keys that xp renders or answers itself, or that the pinned classes lack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest

ANSWERS = (Path(__file__).with_name("native_keys.toml"),)
SFT_ANSWERS = (Path(__file__).with_name("sft_keys.toml"), *ANSWERS)


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
