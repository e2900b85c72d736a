"""xp's word for a native key of a trainer: the field that is rendered to it, or the way to pass it through."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from xp.composition.groups import compose_groups, with_plugins
from xp.composition.known_names import SECTIONS, foreign_hint
from xp.composition.values import resolve_values
from xp.lib.nested import set_at
from xp.planning.native_keys import UNKNOWN_EFFECT, NativeKeys
from xp.spec import RunSpec

Values = Mapping[str, Any]
"""Key path or native key -> its value."""
_REFERENCE = {"env": "whodunit", "model": "qwen2.5-3b-instruct", "hardware": "a100x4"}
_CRITIC = {"algorithm": "ppo", "training.critic_learning_rate": 1e-5}
_LORA = {"model.lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": None}}
_VARIANTS: Mapping[str, tuple[Values, ...]] = {
    "trl": ({"algorithm.importance_correction": "token_truncate"}, {"algorithm": "cispo"}),
    "skyrl": (_LORA, {"algorithm": "cispo"}, _CRITIC, {"backend.parallel.strategy": "megatron"}),
    "slime": (
        {"evaluation.every": 5, "backend.parallel.tensor": 2},
        {**_CRITIC, "backend.convert_model": True},
    ),
}
"""Compositions whose renderings are searched, in this order: together they use all of xp's fields."""


def hint(text: str) -> str | None:
    """Returns the replacement for a key from a trainer's own documentation, or None. `text` may carry `=value`."""
    known = foreign_hint(text)
    if known:
        return known
    typed = text.partition("=")[0].lstrip("+~")
    spellings = (typed, f"--{typed}", SECTIONS.sub("", typed, 1))
    key = next(
        (
            spelling
            for spelling in spellings
            if any(spelling in keys for keys in catalogs().values())
        ),
        typed,
    )
    backends = [name for name, keys in catalogs().items() if key in keys]
    for name in backends:
        field = _fields(name).get(key)
        # A row of the network writes some keys that choose no network.
        is_open = key in _keys(name, {}).table.open
        if field and not (is_open and field.startswith("model.architecture")):
            return f"in xp: {field}"
    keys = {name: _keys(name, {}) for name in backends}
    faults = {name: keys[name].fault(key) for name in backends}
    taken_by = [name for name, fault in faults.items() if fault is None]
    if taken_by:
        passed = " or ".join(
            f"backend={name} 'backend.overrides.{key.lstrip('-')}=...'" for name in taken_by
        )
        return (
            f"a key of {' and '.join(backends)} that xp passes through: {passed}; {UNKNOWN_EFFECT}"
        )
    first = next(iter(faults.values()), None)
    return first and first.replace("xp has a field for this; set ", "in xp: ")


@cache
def catalogs() -> dict[str, Mapping[str, Values]]:
    """Backend -> the native keys in its committed catalogs, each with its description."""
    known: dict[str, dict[str, Values]] = {}
    for file in sorted((Path(__file__).parents[1] / "backends").glob("*/control/catalog*.json")):
        content = json.loads(file.read_text())
        known.setdefault(file.parents[1].name, {}).update(
            content.get("fields") or content.get("flags") or {}
        )
    return {name: dict(keys) for name, keys in known.items()}


@cache
def _fields(backend: str) -> dict[str, str]:
    """Native key -> field of the spec, by the rows of the backend."""
    fields: dict[str, str] = {}
    for variant in _VARIANTS[backend]:
        for key, field in _keys(backend, variant).owners.items():
            if key not in fields or field.startswith(
                f"{fields[key]}."
            ):  # a later variant may name the field itself
                fields[key] = field
    return {key: field for key, field in fields.items() if field}


def _keys(backend: str, variant: Values) -> NativeKeys:
    """Native keys of a backend's training in a variant of the reference spec."""
    keys: NativeKeys = import_module(f"xp.backends.{backend}.control.render").native_keys(
        _spec(backend, variant)
    )
    return keys


def _spec(backend: str, variant: Values) -> RunSpec:
    groups = {key: value for key, value in variant.items() if "." not in key}
    values = {key: value for key, value in variant.items() if "." in key}
    return reference_spec({**_REFERENCE, "backend": backend, **groups}, values)


def reference_spec(options: Mapping[str, str], values: Values) -> RunSpec:
    """The spec of some options of xp's, with some values set.

    Args:
        options: group -> option. A model's option must have an architecture.
        values: key path -> value.

    Raises:
        ValueError: a value is not legal.
    """
    composed = compose_groups(tuple(options.items()), with_plugins(()))
    container = copy.deepcopy(composed.container)
    for path, value in values.items():
        set_at(container, path, value)
    resolve_values(container)
    container["env"] = {"members": {composed.env_name: container["env"]}}
    return RunSpec.model_validate_json(json.dumps(container))
