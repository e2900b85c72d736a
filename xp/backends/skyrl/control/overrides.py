"""Writes native keys for SkyRL's parser, and checks the user's native keys.

SkyRL checks the names of keys but not the types of values (it accepts `trainer.epochs=abc`), so types are checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from xp.errors import nearest
from xp.fields.field import Refusal
from xp.lib.nested import flat
from xp.planning.native_keys import NativeKeys
from xp.spec import RunSpec

VERSION = "0.4.0"
"""Version of the catalogs, which `pins` of conf/backend/skyrl.yaml names too."""
CATALOGS = (f"catalog_{VERSION}.json", f"catalog_{VERSION}_inner.json")
"""Keys of SkyRLTrainConfig, and names in its mappings, which SkyRL passes on to others without a check."""
SFT_CATALOG = f"sft_catalog_{VERSION}.json"
TABLE = Path(__file__).with_name("overrides.toml")
POLICY = "trainer.policy."
"""Section of SkyRLTrainConfig whose keys SFTConfig has at its top."""
PLAIN = re.compile(
    r"(?!(?:null|true|false|yes|no|on|off|nan)$)[A-Za-z_][\w.-]*(/[\w.-]+)*", re.IGNORECASE
)
"""Texts that need no quotes in YAML."""
KINDS: Mapping[str, tuple[type, ...]] = {
    "any": (object,),
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
    is_plain = isinstance(value, str) and PLAIN.fullmatch(value)
    return f"{key}={value if is_plain else json.dumps(value)}"


def sft_overrides(spec: RunSpec) -> dict[str, Any]:
    """`sft.overrides`; keys of SFTConfig that SkyRLTrainConfig has too are given by its names."""
    overrides = flat(spec.sft.overrides)
    known = catalog()["fields"]
    return {
        f"{POLICY}{key}" if known_name(f"{POLICY}{key}", known) else key: value
        for key, value in overrides.items()
    }


def override_refusals(
    keys: NativeKeys, overrides: Mapping[str, Any], known: Mapping[str, Any]
) -> list[Refusal]:
    """Refuses keys that a user cannot set, that this SkyRL lacks, or whose value has a wrong type.

    Args:
        keys: keys of the stage.
        overrides: the user's own, by key path.
        known: fields of the catalog.
    """
    prefix = POLICY if keys.section.startswith("sft") else ""
    faults = {key: _fault(keys, key, value, known) for key, value in overrides.items()}
    return [
        Refusal(f"{keys.section}.{key.removeprefix(prefix)}", fault)
        for key, fault in faults.items()
        if fault is not None
    ]


def _fault(keys: NativeKeys, key: str, value: Any, known: Mapping[str, Any]) -> str | None:
    # A key above a rendered one would replace its neighbours too.
    overlapping = (
        owner
        for owner in keys.owners
        if f"{owner}.".startswith(f"{key}.") or f"{key}.".startswith(f"{owner}.")
    )
    rendered = next((owner for owner in overlapping if owner != key), None)
    if rendered is not None:
        return keys.fault(rendered) or f"xp renders {rendered} itself; write {rendered} itself"
    name = known_name(key, known)
    if name is None:
        return f"SkyRL {VERSION} has no such key{nearest(key, known)}; leave it out"
    fault = keys.fault(name)
    if fault is None and name == key and not is_of_kind(value, known[key]["type"]):
        kind = known[key]["type"]
        return f"SkyRL expects a {kind} but silently accepts {value!r}; write a value of this type"
    return fault


def known_name(key: str, known: Mapping[str, Any]) -> str | None:
    """The key if it is known; else the mapping above it whose keys are not listed. None means that there is
    none."""
    above = key
    while above and above not in known:
        above = above.rpartition(".")[0]
    is_open = bool(above) and _kinds(known[above]["type"]) & {"dict", "any"}
    has_names = any(name.startswith(f"{above}.") for name in known)
    if above == key or (is_open and not has_names):
        return above
    return None


@cache
def catalog(names: tuple[str, ...] = CATALOGS) -> Mapping[str, Any]:
    """Keys with type and default, from tools.catalogs."""
    contents = [json.loads(Path(__file__).with_name(name).read_text()) for name in names]
    return {
        **contents[0],
        "fields": {key: field for content in contents for key, field in content["fields"].items()},
    }


@cache
def sft_catalog() -> Mapping[str, Any]:
    """Fields of SFTConfig, those of the policy by their names in SkyRLTrainConfig."""
    fields = catalog((SFT_CATALOG,))["fields"]
    known = catalog()["fields"]
    of_policy = tuple(f"{POLICY}{key}" for key in fields)
    fields = {key: field for key, field in fields.items() if f"{POLICY}{key}" not in known}
    return fields | {key: field for key, field in known.items() if key.startswith(of_policy)}


def is_of_kind(value: Any, kind: str) -> bool:
    """Returns whether a value has a type of the catalog; unlike in Python, a bool is not a number."""
    kinds = _kinds(kind)
    if isinstance(value, bool):
        return not kinds.isdisjoint({"bool", "any"})
    return any(isinstance(value, KINDS[name]) for name in kinds)


def _kinds(kind: str) -> set[str]:
    """Names in KINDS for a type of the catalog."""
    head, _, inner = kind.partition("[")
    if head == "Optional":
        return {*_kinds(inner[:-1]), "none"}
    if head == "Union":
        return set(inner[:-1].split(", "))
    return {"str" if head == "Literal" else head.lower()}
