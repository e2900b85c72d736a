"""Writes native keys for SkyRL's parser, and checks the user's native keys.

SkyRL checks the names of keys but not the types of values (it accepts `trainer.epochs=abc`), so types are checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest
from xp.planning.backend import Refusal
from xp.planning.rows import Row, not_overridable
from xp.spec import RunSpec

VERSION = "0.4.0"
"""Version of the catalog, which `pins` of conf/backend/skyrl.yaml names too."""
PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|nan)$)[A-Za-z_][\w.-]*(/[\w.-]+)*", re.IGNORECASE)
"""Texts that need no quotes in YAML."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "list": (list, tuple),
    "dict": (dict,),
    "none": (type(None),),
}


def assignment(key: str, value: Any) -> str:
    """`key=value` for SkyRLTrainConfig.from_cli_overrides, which parses the value as YAML."""
    text = value if isinstance(value, str) and PLAIN.fullmatch(value) else json.dumps(value)
    return f"{key}={text}"


def flat(overrides: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections, from YAML or the command line, as key paths."""
    keys: dict[str, Any] = {}
    for key, value in overrides.items():
        path = f"{prefix}{key}"
        keys |= flat(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return keys


def override_refusals(spec: RunSpec, rows: Sequence[Row], owned: Mapping[str, str]) -> list[Refusal]:
    """Refuses keys that xp renders itself, that this SkyRL lacks, or whose value has a wrong type.

    Args:
        spec: the spec, with `backend.overrides`.
        rows: SkyRL's.
        owned: native key -> its field.
    """
    overrides = flat(spec.backend.overrides)
    return [
        Refusal(f"backend.overrides.{key}", why)
        for key in overrides
        for why in _faults(key, overrides[key], rows, owned)
    ]


def _faults(key: str, value: Any, rows: Sequence[Row], owners: Mapping[str, str]) -> Iterator[str]:
    fields = catalog()["fields"]
    # A key above an open one would replace its neighbours too.
    is_open = key in owners and not_overridable(rows, owners, key) is None
    overlapping = (one for one in owners if f"{one}.".startswith(f"{key}.") or f"{key}.".startswith(f"{one}."))
    rendered = next((one for one in overlapping if not (is_open and one == key)), None)
    if rendered is not None:
        way_out = not_overridable(rows, owners, rendered) or f"write {rendered} itself"
        yield f"xp renders {rendered} itself; {way_out}"
    elif key in fields:
        if not is_of_kind(value, fields[key]["type"]):
            yield f"SkyRL expects a {fields[key]['type']} but silently accepts {value!r}; write a value of this type"
    # SkyRL does not check the keys of a mapping.
    elif not any("dict" in _kinds(fields[parent]["type"]) and key.startswith(f"{parent}.") for parent in fields):
        yield f"SkyRL {VERSION} has no such key{nearest(key, fields)}"


@cache
def catalog() -> Mapping[str, Any]:
    """Keys of SkyRLTrainConfig with type and default, from tools.catalogs.skyrl."""
    keys: Mapping[str, Any] = json.loads(Path(__file__).with_name(f"catalog_{VERSION}.json").read_text())
    return keys


def is_of_kind(value: Any, kind: str) -> bool:
    """Returns whether a value has a type of the catalog; unlike in Python, a bool is not a number."""
    kinds = _kinds(kind)
    return "bool" in kinds if isinstance(value, bool) else any(isinstance(value, KINDS[name]) for name in kinds)


def _kinds(kind: str) -> set[str]:
    """Names in KINDS for a type of the catalog."""
    head, _, inner = kind.partition("[")
    if head == "Optional":
        return {*_kinds(inner[:-1]), "none"}
    if head == "Union":
        return set(inner[:-1].split(", "))
    return {"str" if head == "Literal" else head.lower()}
