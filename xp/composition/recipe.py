"""A spec as a recipe: the options that are nearest to it, and what differs from them, with the default beside it."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xp.composition.groups import ROOT, compose_groups, options, with_plugins
from xp.composition.mixes import MIXED, env_name, general_option, mix_name
from xp.composition.model import GENERAL
from xp.composition.points import compose
from xp.composition.values import MISSING
from xp.errors import XpError
from xp.hardware import machine_of
from xp.spec.env import PROVIDER_FIELDS

if TYPE_CHECKING:
    from xp.spec import RunSpec

_GROUPS: Final = ("hardware", "env", "model", "algorithm", "backend", "launcher")
"""The hardware first: it brings a model."""
_NAME: Final = "recipe_of_a_run"
"""Name under which a recipe is composed for a trial."""
_TRIALS: Final = 4
"""A value may refer to another one, whose difference is found only when that one is written."""
_NONE: Final = object()
"""Stands for a key that the other side does not have."""

_PLAIN: Final = re.compile(r"(?!(?:y|n|on|off|yes|no|true|false|null)$)[a-z][a-z_]*", re.IGNORECASE)
"""Texts that need no quotes."""

Changes = dict[tuple[str, ...], tuple[Any, Any]]
"""Key path -> the default and the value; a default that is missing is `???`."""


def recipe_of(spec: RunSpec, title: str, config_dirs: Sequence[Path] = ()) -> str:
    """The text of a recipe that composes to the spec.

    Args:
        spec: of a run.
        title: one line for the recipe's head.
        config_dirs: the user's own options, where the spec was made with some.

    Raises:
        XpError: no options give this spec: an environment is of a directory that is not given.
    """
    directories = with_plugins(config_dirs)
    expected = _plain(spec)
    chosen = _choose(expected, directories)
    container = compose_groups(tuple(chosen.items()), directories).container
    changes = _open_values(container, chosen, expected)
    for _ in range(_TRIALS):
        text = _text(title, chosen, _tree(changes, is_mix="members" in container["env"]))
        composed = _composed(text, config_dirs)
        more = dict(_differences(composed, expected))
        if not more:
            return text
        if more.keys() <= changes.keys():
            break
        changes |= {path: change for path, change in more.items() if path not in changes}
    names = ", ".join(".".join(path) for path in more)
    raise XpError(f"no recipe composes to this spec; these keys keep another value: {names}")


def options_of(spec: Mapping[str, Any], directories: tuple[Path, ...]) -> dict[str, str]:
    """Group -> option with the name that a spec's section has; a group without such an option is left out."""
    chosen: dict[str, str] = {}
    for group in _GROUPS:
        legal, section = options(group, directories), spec.get(group)
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


def _choose(expected: Mapping[str, Any], directories: tuple[Path, ...]) -> dict[str, str]:
    """Group -> option, for the groups in which it is not the default one."""
    chosen = {"model": GENERAL} | options_of(expected, directories)
    plain = compose_groups((), directories)
    is_default = list(expected["env"]["members"]) == [plain.env_name]
    chosen["env"] = plain.env_name if is_default else _env_option(expected["env"]["members"], directories)
    # The hardware brings a model and a backend.
    composed = compose_groups((("hardware", chosen["hardware"]),), directories) if "hardware" in chosen else plain
    defaults = {group: composed.container[group]["name"] for group in _GROUPS if group != "env"}
    defaults |= {"env": plain.env_name, "hardware": plain.container["hardware"]["name"]}
    return {group: chosen[group] for group in _GROUPS if group in chosen and chosen[group] != defaults[group]}


def _env_option(members: Mapping[str, Any], directories: tuple[Path, ...]) -> str:
    """The option of an environment or a mixture; raises XpError if one is of a directory that is not given."""
    legal, names = list(options("env", directories)), list(members)
    if len(names) == 1 and env_name(general := general_option(members[names[0]]), members[names[0]], {}) == names[0]:
        names = [general]
    if missing := [name for name in names if name not in legal]:
        raise XpError(f"env={missing[0]} is not an option here; give the directory that has it: --config-dir DIR")
    places = [ROOT / "conf/env", *(directory / "env" for directory in directories)]
    for option in legal if len(members) > 1 else ():
        if any((file := place / f"{option}.yaml").is_file() and "members" in file.read_text() for place in places):
            mix = compose_groups((("env", option),), directories).container["env"].get("members", {})
            if list(mix) == names:
                return option
    return mix_name(names)


def _open_values(container: Mapping[str, Any], chosen: Mapping[str, str], expected: Mapping[str, Any]) -> Changes:
    """Values that the options leave to the user: `???`, the path of a model without an option, and what an environment
    is made of, without which no trial composes."""
    changes: Changes = {("name",): (container["name"], expected["name"])}
    if chosen.get("model") == GENERAL:
        changes["model", "path"] = (None, expected["model"]["path"])
    for name, member in expected["env"]["members"].items():
        section = container["env"].get("members", {name: container["env"]}).get(name, {})
        for key in ("provider", *dict.fromkeys(key for keys in PROVIDER_FIELDS.values() for key in keys)):
            if section.get(key) != member[key]:
                changes["env", "members", name, key] = (section.get(key), member[key])
    for path in _missing(container):
        is_of_one = path[0] == "env" and "members" not in path
        place = ("env", "members", *expected["env"]["members"], *path[1:]) if is_of_one else path
        value: Any = expected
        for part in place:
            value = value.get(part, _NONE) if isinstance(value, dict) else _NONE
        if value is not _NONE and path != ("model", "name"):
            changes[place] = (MISSING, value)
    return changes


def _missing(node: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _missing(value, (*path, key))
        elif value == MISSING:
            yield *path, key


def _composed(text: str, config_dirs: Sequence[Path]) -> Any:
    """The sections that a recipe composes to; it has a directory of its own, since compositions are cached by it."""
    with tempfile.TemporaryDirectory(prefix="xp-recipe-") as directory:
        recipe = Path(directory, "recipes", f"{_NAME}.yaml")
        recipe.parent.mkdir()
        recipe.write_text(text)
        return _plain(compose([f"recipes={_NAME}"], [*config_dirs, Path(directory)]))


def _plain(spec: RunSpec) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(spec.model_dump_json())
    return plain


def _differences(ours: Any, expected: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Key path -> (our value, the expected one), for each leaf that differs; a section that one lacks is a leaf."""
    if isinstance(ours, dict) and isinstance(expected, dict) and (expected or not ours):
        for key in {**expected, **ours}:
            yield from _differences(ours.get(key, _NONE), expected.get(key, _NONE), (*path, key))
    elif ours != expected and [ours] != expected:  # one name stands for a list of one
        yield path, (None if ours is _NONE else ours, None if expected is _NONE else expected)


def _tree(changes: Changes, *, is_mix: bool) -> dict[str, Any]:
    """The changes by section, as a file has them: a single environment's keys stand without the member's name."""
    tree: dict[str, Any] = {}
    for path, change in changes.items():
        *sections, last = ("env", *path[3:]) if path[:2] == ("env", "members") and not is_mix else path
        node = tree
        for part in sections:
            node = node.setdefault(part, {})
        node[last] = change
    return tree


def _text(title: str, chosen: Mapping[str, str], tree: Mapping[str, Any]) -> str:
    lines = ["# @package _global_", f"# {title}"]
    if chosen:
        lines += ["defaults:", *(f"  - override /{group}: {option}" for group, option in chosen.items())]
    return "\n".join([*lines, *_lines(tree, "")]) + "\n"


def _lines(tree: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from ("", f"{key}:") if not indent else (f"{indent}{key}:",)
            yield from _lines(value, f"{indent}  ")
        else:
            default, changed = value
            yield f"{indent}# Default: {_flow(default)}."
            yield f"{indent}{key}: {_flow(changed)}"


def _flow(value: Any) -> str:
    """A value on one line, as YAML 1.1 reads it: texts are quoted, a float has a point."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
