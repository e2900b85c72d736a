"""Environments of a job's episodes, written as `episode.json` above the wall and read below it, and their providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xp.envs.base import Provider
from xp.errors import XpError
from xp.lib.codec import JsonFile
from xp.lib.load import load_object
from xp.lib.packages import fix
from xp.lib.plugins import BUILT_IN, Kind
from xp.spec.dialect import DialectName
from xp.spec.env import EnvMember
from xp.spec.model import Images


class EnvConfig(EnvMember):
    """One environment of the mixture as its provider and its episodes get it: names are resolved (`spec_in_job`)."""

    name: str
    dialect: DialectName
    """Format of tool calls: one of xp's own, or `module:attribute` of a plugin."""
    images: Images | None = None
    """Limits of pictures. None means that they are refused."""


@dataclass(frozen=True)
class EpisodeConfig(JsonFile):
    """The mixture: all environments of this job's episodes."""

    SORTS_KEYS = True
    members: Mapping[str, EnvConfig]


def load_provider(config: EnvConfig, environ: Mapping[str, str]) -> Provider:
    """Makes a provider from its name, or from `pkg.mod:Class` (a user's or a plugin's), with the same arguments.

    Raises:
        XpError: there is no such provider.
    """
    providers = BUILT_IN[Kind.PROVIDER]
    where = f"environment {config.name}: provider {config.provider}"
    known = ", ".join(providers)
    if ":" not in config.provider and config.provider not in providers:
        raise XpError(f"{where} is none of {known}, and no module:Class")
    try:
        factory = load_object(providers.get(config.provider, config.provider))
    except (ImportError, AttributeError) as error:
        more = fix(error.name if isinstance(error, ModuleNotFoundError) else None)
        raise XpError(f"{where} cannot be loaded: {error}{more}") from error
    provider: Provider = factory(config, environ)
    return provider
