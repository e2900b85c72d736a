"""`provider: verifiers`: an environment package of verifiers (0.4), with its tools, users, rewards and judges."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from xp.envs.packages.hosted import HostedProvider
from xp.envs.packages.judges import Prices


class VerifiersOptions(BaseModel):
    """`env.options` of `provider: verifiers`; conf/env/verifiers.yaml has the defaults."""

    environment: str | None
    """An environment of verifiers that plays the tasks (`user-sim`, another package); None: the package's own."""
    taskset: dict[str, Any]
    """Fields of the package's own configuration of its tasks; `task.judges`, `task.rewards` and others stand in it."""
    seats: dict[str, dict[str, Any]]
    """Fields of a seat's configuration by its name: model and endpoint of a simulated user, and so on."""
    seat: str | None
    """The seat of the model that is trained or evaluated; None: the only one without a model of its own."""
    num_tasks: Annotated[int, Field(ge=1)] | None
    """At most so many tasks; None: all, which an endless package does not have."""
    prices: Prices
    """Prices of judges and of other seats' models, by the names of the models."""


class VerifiersProvider(HostedProvider):
    """See xp.envs.packages.hosted; `target` names the package."""

    Options = VerifiersOptions
    hosted = "xp.envs.packages.verifiers_tasks:VerifiersTasks"
    package = "verifiers==0.4.0"
