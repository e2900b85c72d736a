"""Finds plugins of installed packages: backends, launchers, providers, dialects, trackers, options of config groups.

xp's own names come first. Any other name is looked up in the entry points of the installed packages. A look-up reads
their metadata alone: a plugin's module is imported when a spec uses it, and never for another spec.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from xp.errors import XpError, nearest
from xp.lib.load import load_object
from xp.lib.text import word_list


class Kind(StrEnum):
    """Kind of a plugin's contribution. The value is the name of its group of entry points."""

    BACKEND = "xp.backends"
    LAUNCHER = "xp.launchers"
    PROVIDER = "xp.providers"
    DIALECT = "xp.dialects"
    TRACKER = "xp.trackers"
    CONFIGS = "xp.configs"

    @property
    def word(self) -> str:
        """The kind's name in messages."""
        return self.name.lower()


CONTRIB: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.LAUNCHER: {
        "skypilot": "xp.contrib.skypilot.launcher",
        "kubernetes": "xp.contrib.kubernetes.launcher",
    },
    Kind.PROVIDER: {
        "reasoning_gym": "xp.contrib.reasoning_gym.provider:ReasoningGymProvider",
        "verifiers": "xp.contrib.verifiers.provider:VerifiersProvider",
        "inspect": "xp.contrib.inspect.provider:InspectProvider",
        "harbor": "xp.contrib.harbor.provider:HarborProvider",
        "harness": "xp.contrib.harness.provider:HarnessProvider",
    },
}
"""Parts that nothing else of xp imports: each has options, as a plugin has, and could be a package of its own."""
NATIVE_DIFF: Final = "xp.contrib.native_diff.difference"
"""The annex's module behind `plan --native-diff`."""
BUILT_IN: Final[Mapping[Kind, Mapping[str, str]]] = {
    Kind.BACKEND: {
        name: f"xp.backends.{name}.control.render" for name in ("trl", "skyrl", "slime")
    },
    Kind.LAUNCHER: {
        **{name: f"xp.execution.launchers.{name}" for name in ("local", "ray", "slurm", "modal")},
        **CONTRIB[Kind.LAUNCHER],
    },
    Kind.PROVIDER: {
        "openreward": "xp.envs.openreward:OpenRewardProvider",
        "openenv": "xp.envs.openenv:OpenEnvProvider",
        "local": "xp.envs.graded:GradedProvider",
        **CONTRIB[Kind.PROVIDER],
    },
    Kind.DIALECT: dict.fromkeys(
        word_list("""
            hermes action qwen_xml llama_json pythonic glm harmony mistral deepseek kimi gemma cohere minimax auto
        """),
        "xp.episode.dialects",
    ),
    Kind.TRACKER: {
        name: f"xp.execution.tracking.{name}_tracker:{name.capitalize()}Tracker"
        for name in ("wandb", "tensorboard", "mlflow", "trackio")
    },
}
"""xp's own parts: name -> the module, or the object (`module:attribute`)."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package."""

    name: str
    reference: str
    """`module` or `module:attribute`."""
    package: str
    """Name and version of the distribution."""

    @property
    def top(self) -> str:
        """Top-level module, which is shipped with a job."""
        return self.reference.partition(":")[0].partition(".")[0]


def plugins(kind: Kind) -> tuple[Plugin, ...]:
    """All plugins of a kind, sorted by name."""
    return _installed()[kind]


def names(kind: Kind) -> list[str]:
    """Every name of a kind: xp's own first, then the plugins'."""
    built_in = BUILT_IN.get(kind, {})
    return list(dict.fromkeys((*built_in, *(entry.name for entry in plugins(kind)))))


def is_built_in(kind: Kind, name: str) -> bool:
    """Returns whether a name is xp's. Raises XpError if a plugin has the same name."""
    if name not in BUILT_IN.get(kind, {}):
        return False
    takers = [entry for entry in plugins(kind) if entry.name == name]
    if takers:
        raise XpError(
            f"{kind.word}={name} is xp's own, and the package {takers[0].package} takes the name too (entry point"
            f" {kind}): rename it there, or uninstall the package"
        )
    return True


def plugin(kind: Kind, name: str) -> Plugin:
    """The plugin of a name; raises XpError where there is none, or more than one."""
    matches = [entry for entry in plugins(kind) if entry.name == name]
    if not matches:
        known = names(kind)
        raise XpError(
            f"{kind.word}={name}: no such {kind.word}{nearest(name, known)}; there are: {', '.join(known)}"
        )
    if len(matches) > 1:
        packages = " and ".join(match.package for match in matches)
        raise XpError(
            f"{kind.word}={name} is offered twice (entry point {kind}), by {packages}: uninstall one of them"
        )
    return matches[0]


def in_job(kind: Kind, name: str) -> str:
    """The name for a job's files: xp's own name unchanged, a plugin's as `module:attribute`.

    In a trainer's Python, the modules that a run ships can be imported, but their metadata cannot be read.
    """
    if ":" in name or is_built_in(kind, name):
        return name
    return plugin(kind, name).reference


def load(kind: Kind, name: str, needs: Collection[str] = ()) -> Any:
    """Imports the object of a name.

    Args:
        kind: kind of the object.
        name: xp's own or a plugin's.
        needs: attributes that a plugin's object must have.

    Raises:
        XpError: the name is not defined, the plugin cannot be imported, or it lacks an attribute.
    """
    if is_built_in(kind, name):
        return load_object(BUILT_IN[kind][name])
    entry = plugin(kind, name)
    try:
        loaded = load_object(entry.reference)
    except Exception as error:  # whatever a foreign module raises, its package is named
        raise XpError(
            f"{kind.word}={name}: the package {entry.package} offers it as {entry.reference}, which cannot be imported:"
            f" {type(error).__name__}: {error}"
        ) from error
    lacking = [need for need in needs if not hasattr(loaded, need)]
    if lacking:
        raise XpError(
            f"{kind.word}={name}: {entry.reference} of the package {entry.package} lacks {', '.join(lacking)};"
            " docs/extending.md says what it must have"
        )
    return loaded


def shipped(kind: Kind, name: str) -> str | None:
    """Top-level module of a plugin, which is shipped with a job; None for xp's own names."""
    if ":" in name or is_built_in(kind, name):
        return None
    return plugin(kind, name).top


def top_modules() -> frozenset[str]:
    """Top-level modules of all plugins of other packages."""
    return frozenset(entry.top for kind in BUILT_IN for entry in plugins(kind)) - {"xp"}


def config_dirs() -> tuple[Path, ...]:
    """Directories with options of config groups (`backend/mine.yaml`) that plugins bring; nothing is imported."""
    return tuple(map(_directory, plugins(Kind.CONFIGS)))


def _directory(entry: Plugin) -> Path:
    """Directory of a plugin's package; raises XpError where it does not exist."""
    top, *below = entry.reference.split(".")
    spec = find_spec(top)
    for location in getattr(spec, "submodule_search_locations", None) or ():
        directory = Path(location, *below)
        if directory.is_dir():
            return directory
    raise XpError(
        f"the package {entry.package} offers options in {entry.reference} (entry point {Kind.CONFIGS}), and there is no"
        " such directory: install it again"
    )


@cache
def _installed() -> Mapping[Kind, tuple[Plugin, ...]]:
    offered = entry_points()
    return {
        kind: tuple(sorted(map(_plugin, offered.select(group=kind.value)), key=attrgetter("name")))
        for kind in Kind
    }


def _plugin(entry: EntryPoint) -> Plugin:
    if entry.dist is not None:
        package = f"{entry.dist.name} {entry.dist.version}"
    else:
        package = "of an unknown name"
    return Plugin(entry.name, entry.value.replace(" ", ""), package)
