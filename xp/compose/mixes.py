"""Mixes of environments that a command line or a recipe names itself: `env=[whodunit,ctf]`, or `env=whodunit+ctf`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

MIXED = "env"
"""The group of which several options can be chosen."""
SIGN = "+"
"""Separator of a mixture's options in one word."""


def members_of(wanted: str) -> list[str]:
    """The options that a text names: a list in brackets, or words with `+` between them; a single one is a list too."""
    return [name.strip(" '\"") for name in re.split(rf"[,{SIGN}]", wanted.strip().strip("[]"))]


def mix_name(options: Sequence[str]) -> str:
    """The name of a mixture, as a composition has it."""
    return SIGN.join(options)


def given_twice(options: Sequence[str]) -> str | None:
    """Returns the fault of a mixture that names an environment twice; None if there is none."""
    twice = sorted({option for option in options if options.count(option) > 1})
    if not twice:
        return None
    way_out = f"name it once; env.members.{twice[0]}.weight=2 plays it twice as often"
    return f"{MIXED}=[{','.join(options)}]: {twice[0]} is given twice; {way_out}"


def mix_in_mix(name: str, env: Any) -> str | None:
    """Returns the fault of a mixture with a mixture as a member; None if there is none."""
    members = env.get("members") if isinstance(env, dict) else None
    if not isinstance(members, dict) or SIGN not in name:
        return None
    flat = [one for member, own in members.items() for one in (own.get("members") or {member: None})]
    nested = [member for member, own in members.items() if own.get("members")]
    if not nested:
        return None
    return f"{MIXED}=[{','.join(members)}]: {nested[0]} is a mixture; name its members: {MIXED}=[{','.join(flat)}]"


def defaults_of(name: str) -> list[Any]:
    """The defaults list of a mixture, as a file of it would have it."""
    return [*({f"/{MIXED}@members.{member}": member} for member in members_of(name)), "_self_"]


def with_mixes_named(defaults: Any) -> Any:
    """A file's defaults list, with a list of environments as the mixture's name: Hydra would merge their files."""
    if not isinstance(defaults, list):
        return defaults
    return [_named(item) for item in defaults]


def _named(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return {
        key: mix_name([str(one) for one in value])
        if isinstance(value, list) and re.fullmatch(rf"(override )?/?{MIXED}", str(key))
        else value
        for key, value in item.items()
    }
