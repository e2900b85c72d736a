"""Overrides -> points of a sweep -> RunSpec: reports all errors at once, with the nearest legal name and its place."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xp.composition.faults import Fault
from xp.composition.files import Mark
from xp.composition.groups import ComposedOptions, Directories, compose_groups, with_plugins
from xp.composition.invalid import SET_IT, explain_invalid
from xp.composition.mixes import env_name
from xp.composition.model import (
    complete_checkpoint,
    complete_clock,
    complete_demonstrations,
    complete_model,
    complete_recorded,
    complete_rows,
    complete_served_models,
    complete_teacher,
    complete_template,
)
from xp.composition.origins import file_history, give_way, settle_files, with_value
from xp.composition.overrides import apply, choices_of, is_group, parse
from xp.composition.values import resolve_values
from xp.errors import ExitCode, XpError
from xp.lib.text import first_of

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from xp.spec import RunSpec

MAX_NAMES = 3
"""Points that a fault of a sweep names; the others are counted."""
MAX_FAULTS = 40
"""Number of faults that are shown; the others are counted."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep (or the only one): what distinguishes it, and its spec."""

    overrides: tuple[str, ...]
    spec: RunSpec
    name: str = ""
    """The point's values of the swept keys, as overrides; empty where nothing is swept."""


def compose(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> RunSpec:
    """Composes one spec; raises XpError with all faults of the command line and of the user's files."""
    return _points(overrides, config_dirs, is_sweep=False)[0].spec


def compose_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[Point]:
    """Composes every point of the cartesian product of comma-separated values; raises XpError if any is illegal."""
    return _points(overrides, config_dirs, is_sweep=True)


def variants_of(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination of the values of a sweep's words, as overrides; raises XpError for words that are not a
    sweep."""
    parsed, faults = parse(words)
    choices, more = choices_of(parsed, is_sweep=True)
    raise_faults([*faults, *more])
    return [
        tuple(override.input_line or "" for override in chosen)
        for chosen in itertools.product(*choices)
    ]


def parse_assignments(overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a mapping; raises XpError for group choices and sweeps, which have no place there."""
    return {override.key_or_group: override.value() for override in _assignments(overrides)}


def compose_recorded(
    container: Mapping[str, Any], overrides: Sequence[str], source: str
) -> RunSpec:
    """A recorded spec with values of the command line, for a new run.

    Args:
        container: the sections, as `recorded_spec` reads them.
        overrides: `key=value`; of a single environment also `env.KEY=value`.
        source: its file, for messages.

    Raises:
        XpError: (CONFIG) an override is at fault, or a file of rows is not there; (RUN_DIR) the spec is not of this xp.
    """
    recorded = dict(container)
    validated(recorded, source)
    container = copy.deepcopy(recorded) | {"outputs": "outputs"}
    return recorded_with(container, overrides, partial(_complete_recorded, recorded=recorded))


def _complete_recorded(container: dict[str, Any], recorded: dict[str, Any]) -> Iterator[Fault]:
    """Makes the values of a new run whole in place, as those of a spec that is composed."""
    yield from complete_rows(container)
    yield from complete_template(container)
    yield from complete_recorded(container, recorded)


def _assignments(overrides: Sequence[str]) -> list[Override]:
    """Overrides that are each one value of a key; raises XpError for others."""
    parsed, faults = parse(overrides)
    for override in parsed:
        key, _, text = (override.input_line or "").partition("=")
        if override.is_sweep_override():
            faults.append(
                f"{key}={text}: only one value is allowed; a list is written '{key}=[{text}]'"
            )
        elif is_group(override):
            faults.append(
                f"{key}={text}: the run keeps its recorded options; single values may be set ({key}.KEY=VALUE)"
            )
    raise_faults(faults)
    return parsed


def to_yaml(spec: RunSpec) -> str:
    """The resolved spec as YAML, in the order of the schema."""
    import yaml

    return yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def from_container(container: dict[str, Any], name: str = "env") -> RunSpec:
    """Validates plain data; raises XpError that names every fault.

    Args:
        container: the sections as nested dicts; `env` is a mixture (`members`), or one environment, a mixture of one.
        name: name of a single environment.
    """
    result = _validate(container, name)
    if isinstance(result, list):
        raise XpError("\n".join(map(str, result)))
    return result


def recorded_with(
    container: dict[str, Any],
    overrides: Sequence[str],
    complete: Callable[[dict[str, Any]], Iterable[Fault]] | None = None,
) -> RunSpec:
    """A recorded spec with values of the command line; raises XpError that names every fault.

    Args:
        container: its sections, which are changed in place.
        overrides: `key=value`; of a single environment also `env.KEY=value`.
        complete: makes the values whole in place, and yields what is wrong with them. None: they are taken as they are.
    """
    parsed = _assignments(overrides)
    keys = [override.key_or_group for override in parsed]
    name = "env"
    members = container["env"]["members"]
    if len(members) == 1 and not any(key.startswith("env.members.") for key in keys):
        ((name, container["env"]),) = members.items()
    faults = [fault for override in parsed for fault in apply(container, override)]
    give_way(container, with_value([(o.key_or_group, o.value()) for o in parsed]))
    if complete is not None:
        faults += complete(container)
    raise_faults([str(fault) for fault in faults])
    return from_container(container, name)


def validated(container: dict[str, Any], run: str) -> RunSpec:
    """The spec of a run's record; raises XpError(RUN_DIR) where this version of xp cannot read it."""
    try:
        return from_container(container)
    except XpError as error:
        faults = str(error).replace(SET_IT, "")  # No command sets a value of a record.
        raise XpError(
            f"the spec of {run} does not fit this version of xp: another version wrote it (run.json names its commit), or it"
            f" was edited:\n{faults}",
            ExitCode.RUN_DIR,
        ) from error


def _validate(container: dict[str, Any], name: str) -> RunSpec | list[Fault]:
    from pydantic import ValidationError

    from xp.spec import RunSpec

    container = dict(container)
    env = container.get("env")
    is_mix = isinstance(env, dict) and "members" in env
    if isinstance(env, dict) and not is_mix:
        container["env"] = {"members": {name: env}}
    try:
        return RunSpec.model_validate_json(json.dumps(container))
    except ValidationError as error:
        return explain_invalid(error.errors(include_url=False), RunSpec, is_mix=is_mix)


def _points(
    overrides: Sequence[str], config_dirs: Sequence[Path], *, is_sweep: bool
) -> list[Point]:
    parsed, faults = parse(overrides)
    choices, more = choices_of(parsed, is_sweep=is_sweep)
    faults += more
    swept = {
        override.key_or_group for override in parsed if is_sweep and override.is_sweep_override()
    }
    points: list[Point] = []
    illegal: dict[str, list[str]] = {}
    for chosen in itertools.product(*choices):
        name = " ".join(o.input_line or "" for o in chosen if o.key_or_group in swept)
        result = _point(chosen, with_plugins(config_dirs))
        if isinstance(result, Point):
            points.append(replace(result, name=name))
        else:
            for fault in dict.fromkeys(result):
                illegal.setdefault(fault, []).append(name)
    raise_faults(
        [
            *faults,
            *(
                fault
                for fault in faults_of_points(illegal, math.prod(map(len, choices)))
                if fault not in faults
            ),
        ]
    )
    return points


def faults_of_points(faults: Mapping[str, Sequence[str]], num_points: int) -> list[str]:
    """The faults, each with the points of the sweep that have it; a fault of all points is without names.

    Args:
        faults: fault -> names of the points.
        num_points: of the sweep.
    """
    lines = []
    for fault, names in faults.items():
        is_of_all = not any(names) or len(names) == num_points > 1
        where = f" (sweep {'point' if len(names) == 1 else 'points'} {first_of(names, MAX_NAMES)})"
        lines.append(fault if is_of_all else f"{fault}{where}")
    return lines


def _point(chosen: Sequence[Override], config_dirs: Directories) -> Point | list[str]:
    """One point, or everything that is wrong with it."""
    groups = tuple((o.key_or_group, str(o.value())) for o in chosen if is_group(o))
    composed = compose_groups(groups, config_dirs)
    container = copy.deepcopy(composed.container)
    settle_files(container, composed.chosen, config_dirs)
    values = [
        o
        for o in chosen
        if not is_group(o) and o.key_or_group.partition(".")[0] not in composed.undecided
    ]
    faults = [fault for o in values for fault in apply(container, o)]
    give_way(container, with_value([(o.key_or_group, o.value()) for o in values]))
    faults += resolve_values(container)
    if "model" not in composed.undecided:
        faults += complete_model(container, composed.container)
        faults += complete_checkpoint(container)
        faults += complete_demonstrations(container)
        faults += complete_teacher(container)
    if "env" not in composed.undecided:
        faults += complete_rows(container)
        faults += complete_served_models(container)
    if "model" not in composed.undecided:
        faults += complete_template(container)
        faults += complete_clock(container, composed.container)
    sections = (container.get("env"), composed.container["env"])
    env, default = (section if isinstance(section, dict) else {} for section in sections)
    spec = _validate(container, env_name(composed.env_name, env, default))
    if isinstance(spec, list):
        known = {fault.path for fault in faults}
        if "model.path" in known:  # these would be read from the model
            spec = [
                fault
                for fault in spec
                if not (fault.path.startswith("model.") and fault.value is None)
            ]
        faults += [
            fault for fault in spec if not any(_are_related(fault.path, path) for path in known)
        ]
    elif not faults and not composed.faults:
        return Point(tuple(o.input_line or "" for o in chosen), spec)
    return [
        *composed.faults,
        *_placed(faults, composed, config_dirs, {o.key_or_group for o in values}),
    ]


def _placed(
    faults: Iterable[Fault],
    composed: ComposedOptions,
    config_dirs: Directories,
    overridden: set[str],
) -> Iterator[str]:
    """The faults as lines, with file, line and column of those that come from a file."""
    already = {fault.partition(": ")[0] for fault in composed.faults}
    for fault in faults:
        is_typed = any(_are_related(fault.path, path) for path in overridden)
        mark = file_history(composed.chosen, config_dirs).get(fault.path, (None,))[-1]
        if is_typed or mark is None:
            yield str(fault)
        elif mark.location not in already:
            yield f"{mark.location}: {fault}{_yaml_reading(fault, mark)}"


def _yaml_reading(fault: Fault, mark: Mark) -> str:
    """Describes how YAML reads an unquoted word that was meant as text."""
    if not mark.is_plain or not fault.wants_text or fault.value is None:
        return ""
    if mark.raw == str(fault.value):
        return ""
    return f"; YAML reads {mark.raw} as {json.dumps(fault.value)}: quote it, '{mark.raw}'"


def _are_related(first: str, other: str) -> bool:
    return f"{first}.".startswith(f"{other}.") or f"{other}.".startswith(f"{first}.")


def raise_faults(faults: Sequence[str]) -> None:
    """Raises XpError with the faults, a line each, if there are any."""
    if faults:
        lines = list(faults[:MAX_FAULTS])
        if len(faults) > MAX_FAULTS:
            lines.append(f"and {len(faults) - MAX_FAULTS} more")
        raise XpError("\n".join(lines))
