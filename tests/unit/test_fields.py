"""The table of fields is in the order of conf/, so that a reader who knows one finds the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from xp.fields.sft import SFT
from xp.fields.table import FIELDS

CONF = Path(__file__).parents[2] / "conf"
PATHS = [field.path for field in (*FIELDS, *SFT)]


def read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CONF / name).read_text())
    return values


def key_paths(section: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        path = f"{section}.{name}"
        yield path
        if isinstance(value, dict):
            yield from key_paths(path, value)


@pytest.mark.parametrize(
    "section", ["algorithm", "backend", "env", "evaluation", "hardware", "model", "sft", "training"]
)
def test_fields_are_in_the_order_of_the_options(section: str) -> None:
    if section == "evaluation":
        values = read("config.yaml")[section]
    elif section == "model":
        values = read("model/_base.yaml")[section]
    else:
        values = read(f"{section}/_base.yaml")
    keys = list(key_paths(section, values))
    places = [keys.index(path) for path in PATHS if path in keys]
    assert len(places) > len(values) / 3
    assert places == sorted(places)
