"""Reads a run's spec, and finds its base: the recipe with the run's name, or the defaults of the chosen options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from xp.composition import compose, options
from xp.composition.groups import compose_groups, with_plugins
from xp.composition.mixes import MIXED, NAMING, general_option, mix_name
from xp.composition.model import GENERAL
from xp.composition.points import validated
from xp.envs.base import EnvFault, Task
from xp.envs.config import load_provider
from xp.episode.mixture import description
from xp.errors import ExitCode, XpError
from xp.execution.record import is_ours
from xp.lib.nested import leaves, varied
from xp.lib.reading import is_name, recorded_spec
from xp.planning.episode import episode_environ
from xp.planning.stages import prepare_config
from xp.results.evaluation.records import REQUEST
from xp.results.report.web import as_dict, page_name, page_text
from xp.spec import RunSpec
from xp.spec.hardware import machine_of

MISSING: Final = "(absent)"
MAX_VALUE: Final = 2_000


def trusted_spec(run: Path, otherwise: str) -> RunSpec:
    """The spec of a run whose code may be loaded; raises XpError(RUN_DIR) if the run was begun elsewhere.

    Args:
        run: directory of the run.
        otherwise: what is not done with a run of elsewhere, for the message.
    """
    if (run / REQUEST).is_file():
        raise XpError(
            f"{run.name} is an evaluation, so {otherwise}; only the page of a run shows this",
            ExitCode.RUN_DIR,
        )
    if not is_ours(run):
        raise XpError(
            f"{run.name} was begun elsewhere, so {otherwise}; open the page where it was begun",
            ExitCode.RUN_DIR,
        )
    return validated(recorded_spec(run / "spec.yaml"), run.name)


def differences(spec: Mapping[str, Any]) -> tuple[str, list[tuple[str, str, str]]]:
    """The base as text, and each key that differs from it: key, value of the base, own value."""
    name, base = base_of(spec)
    return name, difference(flat(base), flat(spec))


def difference(base: Mapping[str, str], values: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Keys whose values differ, with both."""
    keys = varied([values, base])
    return [(key, base.get(key, MISSING), values.get(key, MISSING)) for key in keys]


def flat(spec: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys of a nested mapping with their values as text for a page."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in leaves(spec)
    }
    return {page_name(key): page_text(text, MAX_VALUE) for key, text in texts.items()}


def base_of(spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The base of a spec: a recipe, found by the run's name, else the options, found by the names of the sections."""
    name = str(spec.get("name"))
    if is_name(name) and name in options("recipes"):
        return f"the recipe {name}", _composed((("recipes", name),), _members(spec))
    chosen = options_of(spec)
    words = " ".join(f"{group}={option}" for group, option in chosen.items())
    return f"the defaults with {words}", _composed(tuple(chosen.items()), _members(spec))


def _members(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(as_dict(as_dict(spec.get(MIXED)).get("members")))


def options_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """Group -> option with the name that a spec's section has; a group without such an option is left out. An
    environment without an option of its own has the general one of its provider."""
    chosen: dict[str, str] = {}
    for group in ("hardware", "env", "model", "algorithm", "backend", "launcher"):
        legal = options(group)
        section = as_dict(spec.get(group))
        name = str(section.get("name"))
        if group == MIXED:
            names = [_option_of(name, as_dict(section["members"][name])) for name in _members(spec)]
            if names and all(name in legal for name in names):
                chosen |= {group: mix_name(names)}
        elif name in legal or (group == "hardware" and machine_of(name) is not None):
            chosen[group] = name
        elif group == "model" and section:
            chosen[group] = GENERAL
    return chosen


def _option_of(name: str, member: Mapping[str, Any]) -> str:
    """The option of an environment: of its name, if that names the same class, rows or server, or the general one."""
    if name in options(MIXED):
        mix = compose_groups(((MIXED, name),), with_plugins(())).container[MIXED]
        if any(
            member.get(key) is not None and member.get(key) == mix.get(key)
            for key in NAMING
            if key != "provider"
        ):
            return name
    return general_option(member)


@cache
def _composed(chosen: tuple[tuple[str, str], ...], members: tuple[str, ...]) -> Mapping[str, Any]:
    """The options' values. A general option needs further ones to be a spec; then its values are not resolved."""
    try:
        container: dict[str, Any] = compose(
            [f"{group}={option}" for group, option in chosen]
        ).model_dump(mode="json")
    except XpError:
        container = dict(compose_groups(chosen, with_plugins(())).container)
    env = as_dict(container.get(MIXED))
    if len(members) == 1:
        member = next(iter(env.get("members", {"": env}).values()))
        container[MIXED] = {"members": {members[0]: member}}
    return container


def described_task(run: Path, record: Mapping[str, Any]) -> str:
    """The environment's description of the task, with the right answer, as JSON text for a page.

    No file of a run has it, so the environment is asked again.

    Args:
        run: directory of the run.
        record: record of the episode.

    Raises:
        XpError: the run was begun elsewhere, so that its environment is not started, or the environment fails.
    """
    spec = trusted_spec(run, "its environment is not started")
    member = prepare_config(spec).members.get(str(record["env"]))
    if member is None:
        raise XpError(f"{run.name} has no environment {record['env']}", ExitCode.RUN_DIR)
    provider = load_provider(member.env, episode_environ(spec))
    try:
        answer = description(provider, Task(record["env"], record["split"], record["index"]))
    except EnvFault as error:
        raise XpError(
            f"the environment does not describe the task: {error}", ExitCode.ENVIRONMENT
        ) from error
    finally:
        provider.close()
    return page_text(json.dumps(answer, ensure_ascii=False, indent=2))
