"""Groups and overrides -> RunSpec; the only file that imports hydra or omegaconf.

Hydra composes the groups; values are applied and checked here, so that every fault of a command line is told at once,
with the nearest legal name, before any directory is made.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xp.errors import XpError
from xp.faults import explain_invalid, explain_unknown_key, nearest
from xp.known_names import foreign_hint, option_alias

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from xp.spec import RunSpec

GROUPS = ("env", "model", "algorithm", "backend", "hardware", "launcher", "recipes")
FREE_FORM = re.compile(r"(backend\.overrides|backend\.pins|env(\.members\.[^.]+)?\.secrets)\.")
"""Paths below which any key is legal."""

_PACKAGE = Path(__file__).resolve().parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent
"""Holds conf/ and recipes/: the checkout, or the package itself where it is installed."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep (or the only one): what distinguishes it, and its spec."""

    overrides: tuple[str, ...]
    spec: RunSpec


def compose(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> RunSpec:
    """Compose one spec; raises XpError with all faults of the command line."""
    return next(iter(_points(overrides, config_dirs, is_sweep=False))).spec


def compose_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[Point]:
    """Compose every point of the cartesian product of comma-separated values; raises XpError if any is illegal."""
    return list(_points(overrides, config_dirs, is_sweep=True))


def options(group: str, config_dirs: Sequence[Path] = ()) -> list[str]:
    """The options of a group, sorted; raises XpError if a user's directory offers one that exists already."""
    found: dict[str, Path] = {}
    for directory in (
        ROOT / "recipes" if group == "recipes" else ROOT / "conf" / group,
        *(d / group for d in config_dirs),
    ):
        for file in sorted(directory.glob("*.yaml")):
            if file.stem in found:
                raise XpError(f"{group}={file.stem} is offered twice: {found[file.stem]} and {file}; rename yours")
            found[file.stem] = file
    return sorted(name for name in found if not name.startswith("_"))


def parse_assignments(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a mapping; raises XpError for group choices and sweeps, which have no place there."""
    parsed = _parse(overrides)
    for override in parsed:
        if _is_group(override) or override.is_sweep_override():
            raise XpError(f"{override.input_line}: only key=value is taken here")
    return {override.key_or_group: override.value() for override in parsed}


def to_yaml(spec: RunSpec) -> str:
    """The resolved spec as YAML, in the order of the schema."""
    import yaml

    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def from_container(container: dict[str, Any], env_name: str = "env") -> RunSpec:
    """Validate plain data; raises XpError that names every fault.

    Args:
        container: the sections as nested dicts; `env` is a mix (`members`), or one environment, a mix of one.
        env_name: what to call that one.
    """
    from pydantic import ValidationError

    from xp.spec import RunSpec

    container = dict(container)
    env = container.get("env")
    if isinstance(env, dict) and "members" not in env:
        container["env"] = {"members": {env_name: env}}
    try:
        return RunSpec.model_validate_json(json.dumps(container))
    except ValidationError as error:
        raise XpError(explain_invalid(error.errors(include_url=False), RunSpec)) from None


def _points(overrides: Sequence[str], config_dirs: Sequence[Path], *, is_sweep: bool) -> Iterator[Point]:
    for chosen in _expand(_parse(overrides), is_sweep=is_sweep):
        groups = tuple(f"{o.key_or_group}={o.value()}" for o in chosen if _is_group(o))
        composed, env_name = _compose_groups(groups, tuple(config_dirs))
        container = copy.deepcopy(composed)
        faults = [fault for o in chosen if not _is_group(o) for fault in _apply(container, o)]
        try:
            spec = from_container(container, env_name)
        except XpError as error:
            faults.append(str(error))
        if faults:
            raise XpError("\n".join(faults))
        yield Point(tuple(o.input_line or "" for o in chosen), spec)


def _parse(overrides: Sequence[str]) -> list[Override]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed: list[Override] = []
    faults = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            hint = foreign_hint(text)
            faults.append(f"{text}: {hint or 'an override is written key=value'} ({str(error).splitlines()[0]})")
            continue
        if override.is_delete() or override.is_add() or override.key_or_group.startswith("hydra"):
            faults.append(f"{text}: write it as key=value; keys are neither added (+) nor deleted (~), set one to null")
        parsed.append(override)
    if faults:
        raise XpError("\n".join(faults))
    return parsed


def _expand(parsed: list[Override], *, is_sweep: bool) -> Iterator[tuple[Override, ...]]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    swept = [o.input_line for o in parsed if o.is_sweep_override()]
    if swept and not is_sweep:
        raise XpError(f"{swept[0]}: several values make a sweep; add -m")
    choices = [
        [parser.parse_override(f"{o.key_or_group}={value}") for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [o]
        for o in parsed
    ]
    yield from itertools.product(*choices)


def _is_group(override: Override) -> bool:
    return override.key_or_group in GROUPS


@cache
def _compose_groups(groups: tuple[str, ...], config_dirs: tuple[Path, ...]) -> tuple[dict[str, Any], str]:
    """Compose the options alone, and say which env was chosen; cached, since a sweep's points mostly share them."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    chosen = dict(_resolve_option(text, config_dirs) for text in groups)
    searchpath = ",".join(f"file://{d.resolve()}" for d in (ROOT, *config_dirs))
    try:
        with initialize_config_dir(config_dir=str(ROOT / "conf"), version_base="1.3"):
            lines = [f"{group}={option}" for group, option in chosen.items()]
            config = hydra_compose("config", [f"hydra.searchpath=[{searchpath}]", *lines], return_hydra_config=True)
        env_name = config.hydra.runtime.choices["env"]
        OmegaConf.set_struct(config, False)
        del config["hydra"]
        _refuse_resolvers(OmegaConf.to_container(config, resolve=False))
        missing = OmegaConf.missing_keys(config)
        container = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise XpError(f"the configuration does not compose: {error}") from None
    if missing:
        raise XpError("\n".join(f"{key} has no value (???): set it" for key in sorted(missing)))
    return cast("dict[str, Any]", container), str(env_name)


def _resolve_option(text: str, config_dirs: tuple[Path, ...]) -> tuple[str, str]:
    group, _, wanted = text.partition("=")
    legal = options(group, config_dirs)
    name = option_alias(group, wanted, legal)
    if name is None:
        raise XpError(f"{group}={wanted}: no such option{nearest(wanted, legal)}; there are: {', '.join(legal)}")
    return group, name


def _refuse_resolvers(value: Any, path: str = "") -> None:
    """Interpolation is for names and paths only; a resolver such as oc.env could pull a secret into a file."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "_target_":
                raise XpError(f"{path}.{key}: nothing is instantiated from a configuration; name a class with provider")
            _refuse_resolvers(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _refuse_resolvers(child, f"{path}.{index}")
    elif isinstance(value, str) and "${" in value and ":" in value.split("${", 1)[1].split("}", 1)[0]:
        raise XpError(f"{path}: {value!r} uses a resolver; name secrets under env.secrets, write other values out")


def _apply(container: dict[str, Any], override: Override) -> Iterator[str]:
    """Set one value in place; yields the fault if the key does not exist."""
    path = override.key_or_group
    value = override.value()
    if "${" in str(value):
        yield f"{path}: {value!r}: interpolation is not taken from the command line; write the value out"
        return
    node: Any = container
    parts = path.split(".")
    for depth, part in enumerate(parts[:-1]):
        if isinstance(node, dict) and part not in node and FREE_FORM.match(path):
            node[part] = {}
        if not isinstance(node, dict) or part not in node:
            yield explain_unknown_key(path, ".".join(parts[:depth]), node, foreign_hint(path))
            return
        node = node[part]
    last = parts[-1]
    if not isinstance(node, dict) or (last not in node and not FREE_FORM.match(path)):
        yield explain_unknown_key(path, ".".join(parts[:-1]), node, foreign_hint(path))
    elif isinstance(value, dict) and isinstance(node.get(last), dict):
        node[last] = {**node[last], **value}
    else:
        node[last] = value
