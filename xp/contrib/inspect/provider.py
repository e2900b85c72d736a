"""`provider: inspect`: a task of inspect_ai, with its dataset, solver, tools and scorers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from xp.contrib.hosted import HostedProvider
from xp.envs.config import EnvConfig
from xp.envs.judges import Prices
from xp.errors import XpError
from xp.lib.code_files import code_files, with_imports
from xp.lib.digest import digest_of, file_digest


class InspectRole(BaseModel):
    """Model of a role, such as `grader`, that a scorer or a solver calls."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1)]
    """Name in inspect_ai: `openai-api/mine/NAME` for an endpoint with OpenAI's API."""
    base_url: str | None = None
    """URL of its endpoint. None means the vendor's."""
    api_key_var: str | None = None
    """Name of the variable with its key, which `env.secrets` declares. None means no key."""


class InspectOptions(BaseModel):
    """`env.options` of `provider: inspect`; conf/env/inspect.yaml has the defaults."""

    arguments: dict[str, Any]
    """Arguments of the task's function."""
    score: str | None
    """Scorer whose score is the reward, or `SCORER.KEY` for a score with several values. None means the only scorer."""
    roles: dict[str, InspectRole]
    """Models by role; an episode is void if its scorer calls a role without a model here."""
    prices: Prices
    """Prices of judge models, by name."""


class InspectProvider(HostedProvider):
    """See xp.contrib.hosted; `target` is `/path/to/file.py@task`, or a task of an installed package."""

    Options = InspectOptions
    hosted = "xp.contrib.inspect.tasks:InspectTasks"
    package = "inspect_ai==0.3.285"

    @staticmethod
    def source_digest(config: EnvConfig) -> str | None:
        """Digest of the task's file and the user's modules that it imports. None means that the task is in an installed
        package.

        Raises:
            XpError: (CONFIG) the file cannot be read.
        """
        place = Path(str(config.target).partition("@")[0]).expanduser()
        if place.suffix != ".py":
            return None
        try:
            _, *imported = with_imports([place], [str(place.parent), *sys.path])
            return digest_of(
                [
                    file_digest(place),
                    *(file_digest(file) for module in imported for file in code_files(module)),
                ]
            )
        except OSError as error:
            raise XpError(f"environment {config.name}: target {place}: {error}") from None
