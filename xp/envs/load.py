"""Loads the provider of a spec."""

from __future__ import annotations

from collections.abc import Mapping

from xp.envs.base import Provider
from xp.envs.config import EnvConfig
from xp.errors import XpError
from xp.lib.load import load_object
from xp.lib.packages import fix
from xp.lib.plugins import BUILT_IN, Kind


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
