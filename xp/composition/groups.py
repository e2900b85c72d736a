"""Composes the chosen options with Hydra, without the values of the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from xp.composition.files import FileFault
from xp.composition.known_names import option_alias
from xp.composition.mixes import MIXED, given_twice, members_of, mix_in_mix, mix_name
from xp.composition.values import unescaped, with_texts
from xp.errors import XpError, nearest
from xp.lib import plugins
from xp.spec.hardware import AUTO, machine_of, this_machine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.defaults_list import DefaultsList

Choices = tuple[tuple[str, str], ...]
"""Group and option of each choice."""
Directories = tuple[Path, ...]
"""Directories of options, of the user and of plugins."""
GROUPS = ("env", "model", "algorithm", "backend", "hardware", "launcher", "recipes")

_PACKAGE = Path(__file__).resolve().parents[1]
if (_PACKAGE / "conf").is_dir():
    ROOT = _PACKAGE
else:
    ROOT = _PACKAGE.parent
"""Holds conf/ and recipes/: the checkout, or the package itself where it is installed."""

SECTIONS: Mapping[str, tuple[str, ...]] = {group: (group,) for group in GROUPS} | {
    "hardware": ("hardware", "model", "backend"),
    "recipes": GROUPS[:-1],
}
"""Group -> sections that its options decide: while one of them is at fault, overrides of these cannot be judged."""


@dataclass(frozen=True)
class ComposedOptions:
    """The options, merged and not yet resolved."""

    container: dict[str, Any]
    env_name: str
    """Name of a single environment."""
    chosen: Choices
    """Group -> option, as asked for and as they exist."""
    faults: tuple[str, ...] = ()
    undecided: frozenset[str] = frozenset()
    """Sections that replace those of a faulty option."""


def with_plugins(config_dirs: Sequence[Path]) -> Directories:
    """A user's directories of options, and those of installed plugins."""
    return tuple(dict.fromkeys((*config_dirs, *plugins.config_dirs())))


def options(group: str, config_dirs: Sequence[Path] = ()) -> dict[str, Path]:
    """The options of a group, sorted, with their files; raises XpError if a user's or a plugin's directory offers one
    that exists."""
    files: dict[str, Path] = {}
    twice = []
    for directory in (
        ROOT / "recipes" if group == "recipes" else ROOT / "conf" / group,
        *(d / group for d in with_plugins(config_dirs)),
    ):
        for file in sorted(directory.glob("*.yaml")):
            if file.stem in files:
                twice.append(
                    f"{group}={file.stem} is defined twice: {files[file.stem]} and {file}; rename yours"
                )
            files[file.stem] = file
    if twice:
        raise XpError("\n".join(twice))
    return {name: files[name] for name in sorted(files) if not name.startswith("_")}


@cache
def compose_groups(groups: Choices, config_dirs: Directories) -> ComposedOptions:
    """Composes the options; cached, since a sweep's points mostly share them. Faults are in the result."""
    chosen, faults = _resolve(groups, config_dirs)
    dropped = {group for group, _ in groups} - set(chosen)
    while True:
        has_users = any(_is_users(group, option, config_dirs) for group, option in chosen.items())
        in_order = tuple(
            sorted(chosen.items())
        )  # one composition, in whatever order its options were typed
        # A recipe of xp's may choose an option of its annex.
        directories = config_dirs if has_users else plugins.config_dirs()
        more, container, env_name = _merge(in_order, directories)
        faults += [fault for fault in more if fault not in faults]
        if container is not None:
            undecided = {section for group in dropped for section in SECTIONS[group]}
            return ComposedOptions(
                container, env_name, in_order, tuple(faults), frozenset(undecided)
            )
        # Go on without the faulty option, so that the rest of the command line is checked too.
        foreign = {
            group for group, option in chosen.items() if _is_users(group, option, config_dirs)
        } or set(chosen)
        if not foreign:
            raise XpError("\n".join(faults))
        dropped |= foreign
        chosen = {group: option for group, option in chosen.items() if group not in foreign}


@cache
def merge_order(chosen: Choices, config_dirs: Directories) -> list[tuple[str, str]]:
    """Config path and package of every file of a composition; a later one wins over an earlier one."""
    _, _, defaults = _hydra(dict(chosen), config_dirs, [])
    return [
        (default.config_path, default.package or "")
        for default in defaults.defaults
        if default.config_path is not None
    ]


def _resolve(groups: Choices, config_dirs: Directories) -> tuple[dict[str, str], list[str]]:
    chosen: dict[str, str] = {}
    faults: list[str] = []
    for group, requested in groups:
        try:
            legal = list(options(group, config_dirs))
        except XpError as error:
            faults += [line for line in str(error).splitlines() if line not in faults]
            continue
        names = [requested]
        if group == MIXED and requested not in legal:
            names = members_of(requested)
        matches = [option_alias(group, name, legal) for name in names]
        if group == "hardware" and matches == [None]:
            try:
                matches = [machine_option(requested, legal)]
            except XpError as error:
                faults.append(str(error))
                continue
        for name, option in zip(names, matches, strict=True):
            if option is None:
                faults.append(_no_option(group, name, legal, config_dirs))
        legal_names = [option for option in matches if option is not None]
        twice = given_twice(legal_names)
        if twice is not None:
            faults.append(twice)
        elif len(legal_names) == len(names) and requested != "None":
            chosen[group] = mix_name(legal_names)
    return chosen, faults


def machine_option(word: str, legal: Sequence[str]) -> str | None:
    """The option of a word for a machine: a file's if one has its name. None means that the word has another form.

    Raises:
        XpError: an unknown card, or `auto` on a machine with different GPUs.
    """
    if word.lower() == AUTO:
        return "cpu" if this_machine() is None else AUTO
    machine = machine_of(word)
    if machine is None:
        return None
    return option_alias("hardware", machine.name, legal) or machine.name


def _no_option(group: str, name: str, legal: Sequence[str], config_dirs: Directories) -> str:
    if group == "model" and "/" in name:
        return f"model={name}: no such option; for a model of the hub or a directory set model=hf model.path={name}"
    if group == "env":
        words = _words_of_env(name)
        if words is not None:
            return f"env={name}: no option; set {words}"
    fault = f"{group}={name}: no such option{nearest(name, legal)}; there are: {', '.join(legal)}"
    if group == "hardware":
        fault += f"; {AUTO} (this machine); GPUs x card, as 8xB200 or 2x8xH100"
    for directory in config_dirs:
        for file in sorted((*directory.glob("*.y*ml"), *directory.glob("*/*.y*ml"))):
            if file.stem == name:
                fault += f"; {file} is not {directory / group / name}.yaml"
    return fault


def _words_of_env(name: str) -> str | None:
    """Overrides for an environment of the user's own: a file, a data set, a server, a name of the catalog, a class."""
    if name.startswith("hf:") or name.endswith((".jsonl", ".json", ".csv", ".parquet")):
        return f"env=graded env.rows={name} env.grader=number (or another: docs/environments.md)"
    if "/" in name:
        return f"env=openreward env.target={name}"
    if ":" in name:
        return f"env=graded env.grader={name} for a grader, env=openreward env.serve={name} for an ORS class"
    return None


def _is_users(group: str, option: str, config_dirs: Directories) -> bool:
    names = [option]
    if group == MIXED:
        names += members_of(option)
    return any(
        os.path.lexists(directory / group / f"{name}.yaml")
        for directory in config_dirs
        for name in names
    )


@cache
def _merge(
    chosen: Choices, config_dirs: Directories
) -> tuple[list[str], dict[str, Any] | None, str]:
    """Faults, the unresolved container (None if a fault leaves none) and the environment's name."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    reads: list[FileFault] = []
    try:
        loader, files, defaults = _hydra(dict(chosen), config_dirs, reads)
        env_name = str(defaults.overrides.known_choices["env"])
        config = loader._compose_config_from_defaults_list(defaults.defaults, files)
        container = cast(
            "dict[str, Any]", with_texts(OmegaConf.to_container(config, resolve=False), unescaped)
        )
        nested = mix_in_mix(env_name, container["env"])
        if nested is not None:
            return [nested], None, ""
    except (
        HydraException,
        OmegaConfBaseException,
        YAMLError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        faults = [str(fault) for fault in reads] or [
            f"the options do not compose: {_first_lines(error)}"
        ]
        return faults, None, ""
    except RecursionError:
        return (
            ["the options do not compose: their defaults lists refer to each other in a circle"],
            None,
            "",
        )
    is_usable = not any(fault.is_fatal for fault in reads)
    return [str(fault) for fault in reads], container if is_usable else None, env_name


def _hydra(
    chosen: dict[str, str], config_dirs: Directories, reads: list[FileFault]
) -> tuple[ConfigLoaderImpl, CachingConfigRepository, DefaultsList]:
    """Hydra's loader, its files, and those that these options compose, in merge order.

    `hydra.compose` adds the settings of Hydra's own program, and imports its plugins, for more than half of the time.
    """
    from hydra import version
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.defaults_list import create_defaults_list
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from xp.composition.sources import search_path

    version.setbase("1.3")
    loader = ConfigLoaderImpl(search_path(ROOT, config_dirs, reads))
    files = CachingConfigRepository(loader.repository)
    words = [f"{group}='{option}'" for group, option in chosen.items()]
    defaults = create_defaults_list(
        files,
        "config",
        OverridesParser.create().parse_overrides(words),
        prepend_hydra=False,
        skip_missing=False,
    )
    return loader, files, defaults


def _first_lines(error: BaseException) -> str:
    """Hydra's message, without its search path and its advice to use `+`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    rest = [
        line
        for line in lines
        if not line.startswith(("Search path", "Config search path", "provider=", "To "))
    ]
    return " ".join(rest[:2]) or type(error).__name__
