"""`provider: inspect`: a task of inspect_ai, with its dataset, solver, tools and scorers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from xp.envs.packages.hosted import HostedProvider
from xp.envs.packages.judges import Prices


class InspectRole(BaseModel):
    """Model of a role, such as `grader`, that a scorer or a solver calls."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1)]
    """Name in inspect_ai: `openai-api/mine/NAME` for an endpoint with OpenAI's API."""
    base_url: str | None = None
    """URL of its endpoint; None: the vendor's."""
    api_key_var: str | None = None
    """Name of the variable with its key, which `env.secrets` declares; None: no key."""


class InspectOptions(BaseModel):
    """`env.options` of `provider: inspect`; conf/env/inspect.yaml has the defaults."""

    arguments: dict[str, Any]
    """Arguments of the task's function."""
    score: str | None
    """Scorer whose score is the reward, or `SCORER.KEY` for a score with several values; None: the only scorer."""
    roles: dict[str, InspectRole]
    """Models by role; an episode is void if its scorer calls a role without a model here."""
    prices: Prices
    """Prices of judge models, by name."""


class InspectProvider(HostedProvider):
    """See xp.envs.packages.hosted; `target` is `/path/to/file.py@task`, or a task of an installed package."""

    Options = InspectOptions
    hosted = "xp.envs.packages.inspect_tasks:InspectTasks"
    package = "inspect_ai==0.3.285"
