"""`provider: inspect`: a task of inspect_ai, with its dataset, solver, tools and scorers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from xp.envs.packages.hosted import HostedProvider
from xp.envs.packages.judges import Prices


class InspectRole(BaseModel):
    """A model that a scorer or a solver asks by the name of its role, such as `grader`."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[str, Field(min_length=1)]
    """As inspect_ai names it: `openai-api/mine/NAME` for an endpoint of OpenAI's form."""
    base_url: str | None = None
    """URL of its endpoint; None: the one of its maker."""
    api_key_var: str | None = None
    """Name of the variable with its key, which `env.secrets` declares; None: it needs none."""


class InspectOptions(BaseModel):
    """`env.options` of `provider: inspect`; conf/env/inspect.yaml has the defaults."""

    arguments: dict[str, Any]
    """Arguments of the task's function."""
    score: str | None
    """The scorer whose score is the reward, or `SCORER.KEY` of a score with several values; None: the only one."""
    roles: dict[str, InspectRole]
    """Models by role; a scorer that asks a model without a role here makes its episode void."""
    prices: Prices
    """Prices of the models that judge, by their names."""


class InspectProvider(HostedProvider):
    """See xp.envs.packages.hosted; `target` is `/path/to/file.py@task`, or a task of an installed package."""

    Options = InspectOptions
    hosted = "xp.envs.packages.inspect_tasks:InspectTasks"
    package = "inspect_ai==0.3.285"
