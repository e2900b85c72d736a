"""Names of environments, and mixes that a command line or a recipe names: `env=[whodunit,ctf]`, `env=whodunit+ctf`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from xp.lib.code_files import find_module, users_location
from xp.lib.nested import value_at
from xp.lib.reading import is_name

NAMING = ("serve", "target", "image", "provider", "grader", "rows")
"""Fields that give an environment of a general option its name; the first that has one."""
SPLITS = ("train", "test", "validation", "dev", "data", "rows", "tasks")
"""Names of files that say nothing about an environment; their directory's name is used."""
GENERIC = ("app", "server", "main", "src")
"""Names of modules that say nothing about an environment; their package's name is used."""
MIXED = "env"
"""The group of which several options can be chosen."""
SIGN = "+"
"""Separator of a mixture's options in one word."""


def members_of(text: str) -> list[str]:
    """The options that a text names: a list in brackets, or words with `+` between them; a single one is a list too."""
    return [name.strip(" '\"") for name in re.split(rf"[,{SIGN}]", text.strip().strip("[]"))]


def mix_name(options: Sequence[str]) -> str:
    """The name of a mixture, as a composition has it."""
    return SIGN.join(options)


def env_name(option: str, env: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Name of a single environment, for titles and tables: its option's, or the name of the class, module, file or
    package that the values name instead.

    Args:
        option: the chosen option.
        env: the section with the values of the command line.
        default: the section before these. Another grader of its tasks leaves an option's name.
    """
    is_general = option == general_option(env)
    named = {
        **env,
        **{key: None for key in ("provider", "grader") if ":" not in str(env.get(key))},
    }  # xp's own
    values = [
        named.get(key)
        for key in NAMING
        if is_general or (key != "grader" and env.get(key) != default.get(key))
    ]
    values = [
        next(iter(value.values()), None) if isinstance(value, dict) else value for value in values
    ]
    names = (_short(value) for value in values if isinstance(value, str))
    name = next((name for name in names if is_name(name)), option)
    if name.replace("_", "") == option.replace("_", ""):
        return option
    return name


def general_option(env: Mapping[str, Any]) -> str:
    """The option that takes any environment of a provider."""
    provider = str(env.get("provider"))
    if provider == "local":
        return "graded"
    if ":" in provider:
        return "openreward"
    return provider


def _short(value: str) -> str:
    """`guess` of `my.envs:Guess`, `guess.server.app:app`, `guess.jsonl`, `data/guess/train.parquet` and `Org/Guess`."""
    if "://" in value:
        return ""
    module, _, word = value.rpartition(":") if "/" not in value else ("", "", value)
    path = PurePosixPath(word.rpartition(".py@")[2])
    stem = re.sub(r"\.(jsonl?|csv|parquet|py)$", "", path.name)
    if stem in SPLITS:
        short = path.parent.name
    else:
        short = stem.partition(":")[0]
    if module and stem == path.name:
        packages = [name for name in module.split(".") if name not in GENERIC] or [
            _folder_of(module) or word
        ]
        short = word if word[:1].isupper() else packages[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", short).lower()


def _folder_of(module: str) -> str:
    """Directory of a user's package, whose own name says nothing; empty if it is not found."""
    location = users_location(find_module(module.partition(".")[0]))
    return "" if location is None else location.parent.name


def given_twice(options: Sequence[str]) -> str | None:
    """Returns the fault of a mixture that names an environment twice; None if there is none."""
    twice = sorted({option for option in options if options.count(option) > 1})
    if not twice:
        return None
    fix = f"name it once; env.members.{twice[0]}.weight=2 plays it twice as often"
    return f"{MIXED}=[{','.join(options)}]: {twice[0]} is given twice; {fix}"


def mix_in_mix(name: str, env: Any) -> str | None:
    """Returns the fault of a mixture with a mixture as a member; None if there is none."""
    members = value_at(env, "members")
    if not isinstance(members, dict) or SIGN not in name:
        return None
    flat = [
        name
        for member, section in members.items()
        for name in (section.get("members") or {member: None})
    ]
    nested = [member for member, section in members.items() if section.get("members")]
    if not nested:
        return None
    return f"{MIXED}=[{','.join(members)}]: {nested[0]} is a mixture; name its members: {MIXED}=[{','.join(flat)}]"


def defaults_of(name: str) -> list[Any]:
    """The defaults list of a mixture, as a file of it would have it."""
    return [*({f"/{MIXED}@members.{member}": member} for member in members_of(name)), "_self_"]


def with_mixes_named(defaults: Any) -> Any:
    """A file's defaults list, with a list of environments as the mixture's name: Hydra would merge their files."""
    if isinstance(defaults, list):
        return [_named(item) for item in defaults]
    return defaults


def _named(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    return {
        key: mix_name([str(name) for name in value])
        if isinstance(value, list) and re.fullmatch(rf"(override )?/?{MIXED}", str(key))
        else value
        for key, value in item.items()
    }
