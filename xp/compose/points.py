"""Overrides -> points of a sweep -> RunSpec: every fault is told at once, with the nearest legal name and its place."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.compose.groups import GROUPS, Composed, compose_groups
from xp.compose.values import resolve_values
from xp.errors import XpError
from xp.faults import Fault, explain_invalid, explain_unknown_key
from xp.native_names import hint as native_hint

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from xp.spec import RunSpec

FREE_FORM = re.compile(r"(backend\.overrides|backend\.pins|env(\.members\.[^.]+)?\.secrets|model\.chat_template)(\.|$)")
"""Paths below which any key is legal."""
MAX_POINTS = 1_000
"""Of a sweep; more is a slip of the finger."""
MAX_FAULTS = 40
"""Shown; the rest is counted."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep (or the only one): what distinguishes it, and its spec."""

    overrides: tuple[str, ...]
    spec: RunSpec


def compose(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> RunSpec:
    """Compose one spec; raises XpError with all faults of the command line and of the user's files."""
    return _points(overrides, config_dirs, is_sweep=False)[0].spec


def compose_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[Point]:
    """Compose every point of the cartesian product of comma-separated values; raises XpError if any is illegal."""
    return _points(overrides, config_dirs, is_sweep=True)


def parse_assignments(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a mapping; raises XpError for group choices and sweeps, which have no place there."""
    parsed, faults = _parse(overrides)
    faults += [
        f"{override.input_line}: only key=value is taken here"
        for override in parsed
        if _is_group(override) or override.is_sweep_override()
    ]
    _raise(faults)
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
    found = _validate(container, env_name)
    if isinstance(found, list):
        raise XpError("\n".join(str(fault) for fault in found))
    return found


def _validate(container: dict[str, Any], env_name: str) -> RunSpec | list[Fault]:
    from pydantic import ValidationError

    from xp.spec import RunSpec

    container = dict(container)
    env = container.get("env")
    is_mix = isinstance(env, dict) and "members" in env
    if isinstance(env, dict) and not is_mix:
        container["env"] = {"members": {env_name: env}}
    try:
        return RunSpec.model_validate_json(json.dumps(container))
    except ValidationError as error:
        return explain_invalid(error.errors(include_url=False), RunSpec, is_mix=is_mix)


def _points(overrides: Sequence[str], config_dirs: Sequence[Path], *, is_sweep: bool) -> list[Point]:
    parsed, faults = _parse(overrides)
    choices, more = _choices(parsed, is_sweep=is_sweep)
    faults += more
    points: list[Point] = []
    for chosen in itertools.product(*choices):
        found = _point(chosen, tuple(config_dirs))
        if isinstance(found, Point):
            points.append(found)
        else:
            faults += [fault for fault in found if fault not in faults]
    _raise(faults)
    return points


def _point(chosen: Sequence[Override], config_dirs: tuple[Path, ...]) -> Point | list[str]:
    """One point, or everything that is wrong with it."""
    groups = tuple((o.key_or_group, str(o.value())) for o in chosen if _is_group(o))
    composed = compose_groups(groups, config_dirs)
    container = copy.deepcopy(composed.container)
    values = [o for o in chosen if not _is_group(o) and _section(o) not in composed.undecided]
    faults = [fault for o in values for fault in _apply(container, o)]
    faults += resolve_values(container)
    spec = _validate(container, composed.env_name)
    if isinstance(spec, list):
        known = {fault.path for fault in faults}
        faults += [fault for fault in spec if not any(_are_related(fault.path, path) for path in known)]
    elif not faults and not composed.faults:
        return Point(tuple(o.input_line or "" for o in chosen), spec)
    return [*composed.faults, *_placed(faults, composed, config_dirs, {o.key_or_group for o in values})]


def _placed(
    faults: Iterable[Fault], composed: Composed, config_dirs: tuple[Path, ...], overridden: set[str]
) -> Iterator[str]:
    """The faults as lines, with file, line and column of those that come from a file."""
    from xp.compose.origins import file_marks

    marks = file_marks(composed.chosen, config_dirs)
    already = {fault.partition(": ")[0] for fault in composed.faults}
    for fault in faults:
        mark = marks.get(fault.path)
        if mark is None or any(_is_at_or_below(fault.path, path) for path in overridden):
            yield str(fault)
        elif mark.place not in already:
            yield f"{mark.place}: {fault}{_yaml_reading(fault, mark.raw if mark.is_plain else None)}"


def _yaml_reading(fault: Fault, raw: str | None) -> str:
    """What YAML made of an unquoted word that was meant as text."""
    if raw is None or not fault.wants_text or raw == str(fault.value):
        return ""
    return f"; YAML reads {raw} as {json.dumps(fault.value)}: quote it, '{raw}'"


def _parse(overrides: Sequence[str]) -> tuple[list[Override], list[str]]:
    """What can be read of the overrides, and what is wrong with the others."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed: list[Override] = []
    faults = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            hint = native_hint(text)
            faults.append(f"{text}: {hint or 'an override is written key=value'} ({str(error).splitlines()[0]})")
            continue
        fault = _shape_fault(override)
        if fault is None:
            parsed.append(override)
        else:
            faults.append(f"{text}: {fault}")
    return parsed, faults


def _shape_fault(override: Override) -> str | None:
    """What is wrong with an override whatever its key and value are."""
    key = override.key_or_group
    if override.is_delete() or override.is_add() or key.startswith("hydra"):
        return "write it as key=value; keys are neither added (+) nor deleted (~), set one to null"
    if override.package is not None or "/" in key:
        return "a group is chosen as group=option; packages (@) and sub-groups (/) are for files"
    if _is_group(override) and not override.is_sweep_override() and not isinstance(override.value(), str):
        if override.value() is None and key == "recipes":
            return None
        if isinstance(override.value(), list):
            return f"one option is chosen; -m {key}=a,b sweeps over several, and a mix of environments is a file"
        if not isinstance(override.value(), (int, float)):
            return f"{key}=NAME chooses an option; set a single value as {key}.KEY=VALUE"
    return None


def _choices(parsed: list[Override], *, is_sweep: bool) -> tuple[list[list[Override]], list[str]]:
    """The values that each override takes in turn; one that is at fault takes none and is left out."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    choices: list[list[Override]] = []
    faults: list[str] = []
    for override in parsed:
        if not override.is_sweep_override():
            choices.append([override])
            continue
        line = override.input_line
        if not is_sweep:
            faults.append(f"{line}: several values make a sweep; add -m")
            continue
        try:
            texts = list(itertools.islice(override.sweep_string_iterator(), MAX_POINTS + 1))
        except (HydraException, ValueError) as error:
            reason = str(error).splitlines()[0]
            faults.append(f"{line}: a sweep lists its values, as a,b,c or range(1,4) or choice(a,b) ({reason})")
            continue
        twice = sorted({text for text in texts if texts.count(text) > 1}) if len(texts) <= MAX_POINTS else []
        if twice or not texts:
            faults.append(f"{line}: {f'{twice[0]} is given twice' if twice else 'holds no value'}")
        else:
            choices.append([parser.parse_override(f"{override.key_or_group}={text}") for text in texts])
    num_points = 1
    for texts_of_one in choices:
        num_points *= len(texts_of_one)
    if num_points > MAX_POINTS:
        faults.append(f"the sweep has more than {MAX_POINTS:,} points; split it")
        choices = [one[:1] for one in choices]
    return choices, faults


def _is_group(override: Override) -> bool:
    return override.key_or_group in GROUPS


def _section(override: Override) -> str:
    return override.key_or_group.partition(".")[0]


def _is_at_or_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def _are_related(one: str, other: str) -> bool:
    return _is_at_or_below(one, other) or _is_at_or_below(other, one)


def _apply(container: dict[str, Any], override: Override) -> Iterator[Fault]:
    """Set one value in place; yields the fault if the key does not exist."""
    path = override.key_or_group
    value = override.value()
    if "${" in str(value):
        reason = f"{value!r}: interpolation is not taken from the command line; write the value out"
        yield Fault(path, f"{path}: {reason}")
        return
    node: Any = container
    parts = path.split(".")
    for depth, part in enumerate(parts[:-1]):
        if isinstance(node, dict) and part not in node and FREE_FORM.match(path):
            node[part] = {}
        if not isinstance(node, dict) or part not in node:
            yield Fault(path, explain_unknown_key(path, ".".join(parts[:depth]), node, native_hint(path), GROUPS))
            return
        node = node[part]
    last = parts[-1]
    if not isinstance(node, dict) or (last not in node and not FREE_FORM.match(path)):
        yield Fault(path, explain_unknown_key(path, ".".join(parts[:-1]), node, native_hint(path), GROUPS))
    elif isinstance(value, dict) and isinstance(node.get(last), dict):
        node[last] = {**node[last], **value}
    else:
        node[last] = value


def _raise(faults: Sequence[str]) -> None:
    if faults:
        rest = len(faults) - MAX_FAULTS
        raise XpError("\n".join([*faults[:MAX_FAULTS], *([f"and {rest} more"] if rest > 0 else [])]))
