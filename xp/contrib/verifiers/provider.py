"""`provider: verifiers`: an environment package of verifiers (0.4), with its tools, users, rewards and judges."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from xp.contrib.hosted import HostedProvider
from xp.envs.judges import Prices


class VerifiersOptions(BaseModel):
    """`env.options` of `provider: verifiers`; conf/env/verifiers.yaml has the defaults."""

    environment: str | None
    """Environment of verifiers that plays the tasks (`user-sim`, another package). None means the package's own."""
    config: dict[str, Any]
    """Fields of the environment's own configuration, such as its number of attempts."""
    taskset: dict[str, Any]
    """Fields of the package's configuration of its tasks, such as `task.judges` and `task.rewards`."""
    seats: dict[str, dict[str, Any]]
    """Fields of seats' configurations, by the seats' names: model and endpoint of a simulated user, for example."""
    seat: str | None
    """Seat of the trained or evaluated model. None means the only seat without its own model."""
    num_tasks: Annotated[int, Field(ge=1)] | None
    """Largest number of tasks. None means all tasks, not possible for an endless package."""
    prices: Prices
    """Prices of judges and of other seats' models, by model name."""


class VerifiersProvider(HostedProvider):
    """See xp.contrib.hosted; `target` names the package."""

    Options = VerifiersOptions
    hosted = "xp.contrib.verifiers.tasks:VerifiersTasks"
    package = "verifiers==0.4.0"
