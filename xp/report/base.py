"""Finds the base of a run's spec: the recipe with the run's name, or the defaults of the chosen options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from xp.composition import compose, options
from xp.composition.mixes import MIXED, env_name, general_option, mix_name
from xp.errors import XpError
from xp.hardware import machine_of
from xp.lib.names import is_name
from xp.lib.nested import leaves
from xp.report.foreign import page_name, page_text

MISSING: Final = "(absent)"
MAX_VALUE: Final = 2_000


def differences(spec: Mapping[str, Any]) -> tuple[str, list[tuple[str, str, str]]]:
    """The base as text, and each key that differs from it: key, value of the base, own value."""
    name, base = base_of(spec)
    return name, difference(flat(base), flat(spec))


def difference(base: Mapping[str, str], values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Keys whose values differ, with both."""
    keys = dict.fromkeys([*values, *base])
    pairs = ((key, base.get(key, MISSING), values.get(key, MISSING)) for key in keys)
    return [(key, one, other) for key, one, other in pairs if one != other]


def flat(spec: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys of a nested mapping with their values as text for a page."""
    texts = {key: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for key, one in leaves(spec)}
    return {page_name(key): page_text(text, MAX_VALUE).text for key, text in texts.items()}


def base_of(spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The base of a spec: a recipe, found by the run's name, else the options, found by the names of the sections."""
    name = str(spec.get("name"))
    if is_name(name) and name in options("recipes"):
        base = _composed((f"recipes={name}",))
        if base is not None:
            return f"the recipe {name}", base
    chosen = tuple(f"{group}={option}" for group, option in options_of(spec).items())
    for words in (chosen, tuple(word for word in chosen if not word.startswith("env="))):
        if (base := _composed(words)) is not None:
            return f"the defaults with {' '.join(words)}", base
    return "the defaults", _composed(()) or {}


def options_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Group -> option with the name that a spec's section has; a group without such an option is left out."""
    chosen: dict[str, str] = {}
    for group in ("hardware", "env", "model", "algorithm", "backend", "launcher"):
        legal, section = options(group), spec.get(group)
        if not isinstance(section, dict):
            continue
        if group != MIXED:
            is_machine = group == "hardware" and machine_of(str(section.get("name"))) is not None
            chosen |= {group: section["name"]} if is_machine or section.get("name") in legal else {}
            continue
        members = section.get("members") or {}
        names = list(members)
        only = members[names[0]] if len(names) == 1 and names[0] not in legal else None
        if isinstance(only, dict) and env_name(general := general_option(only), only, {}) == names[0]:
            names = [general]
        chosen |= {group: mix_name(names)} if names and all(name in legal for name in names) else {}
    return chosen


@cache
def _composed(words: tuple[str, ...]) -> Mapping[str, Any] | None:
    try:
        container: Mapping[str, Any] = compose(words).model_dump(mode="json")
    except XpError:
        return None
    return container
