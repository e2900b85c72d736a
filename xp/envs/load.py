"""From the provider's name in the spec to the provider."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from xp.envs.base import Provider
from xp.envs.config import EnvConfig
from xp.errors import XpError


def load_provider(config: EnvConfig, environ: Mapping[str, str]) -> Provider:
    """`openreward`, `openenv` and `local` are xp's own; `pkg.mod:Class` is that class, called with the same arguments.

    Raises:
        XpError: there is no such provider.
    """
    if config.provider == "openreward":
        from xp.envs.openreward import OpenRewardProvider

        return OpenRewardProvider(config, environ)
    if config.provider == "openenv":
        from xp.envs.openenv import OpenEnvProvider

        return OpenEnvProvider(config, environ)
    if config.provider == "local":
        from xp.envs.graded import GradedProvider

        return GradedProvider(config, environ)
    module, colon, name = config.provider.partition(":")
    if not colon:
        raise XpError(
            f"environment {config.name}: provider {config.provider!r} is none of openreward, openenv and local,"
            " and no module:Class"
        )
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise XpError(f"environment {config.name}: provider {config.provider} cannot be loaded: {error}") from error
    provider: Provider = factory(config, environ)
    return provider
