"""Options of sandboxes in a cloud, and the account's variables that each cloud needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from xp.envs.config import EnvConfig
from xp.errors import ExitCode, XpError
from xp.spec.env import SandboxKind

ACCOUNTS: Final[Mapping[SandboxKind, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        SandboxKind.DAYTONA: (
            ("DAYTONA_API_KEY",),
            ("DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"),
        ),
        SandboxKind.MODAL: (("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),),
        SandboxKind.E2B: (("E2B_API_KEY",),),
        SandboxKind.RUNLOOP: (("RUNLOOP_API_KEY",),),
    }
)
"""Cloud -> sets of variables, of which Harbor's client needs one."""
PACKAGE: Final = "harbor[daytona,e2b,modal,runloop]==0.26.0"
"""Requirement of the interpreter that runs Harbor's sandboxes and agents."""


class CloudOptions(BaseModel):
    """`env.options.cloud` of `harbor` and `harness`: limits of Harbor's sandboxes; conf/env has the defaults."""

    model_config = ConfigDict(extra="forbid")

    starts_per_second: Annotated[float, Field(gt=0)]
    """Largest number of sandboxes that a process starts in a second."""
    max_minutes: Annotated[int, Field(ge=1, le=1440)]
    """Minutes of one sandbox, after which xp removes it; the cloud does so where xp has ended (Runloop after 24 h)."""
    price: Annotated[float, Field(gt=0)] | None
    """USD that one sandbox costs for an hour. None means that nothing is counted."""
    budget: Annotated[float, Field(gt=0)] | None
    """USD that the sandboxes of one process may cost; then it ends. None means no limit."""
    options: dict[str, Any]
    """Harbor's own options of the sandbox: override_cpus, override_memory_mb, auto_stop_interval_mins, ..."""


def account_variables(sandbox: SandboxKind | None) -> frozenset[str]:
    """Variables of the account at a cloud, which no task and no program gets."""
    ways = ACCOUNTS.get(sandbox, ()) if sandbox is not None else ()
    return frozenset(name for names in ways for name in names)


def check_cloud(config: EnvConfig, verifier_s: float) -> None:
    """Checks the account's variables and the limits of sandboxes in a cloud.

    Args:
        verifier_s: seconds that the scoring of an episode may take after its end.

    Raises:
        XpError: (SECRET) the account's variables are not declared; (CONFIG) there is a budget without a price, or a
            sandbox ends before its episode is scored.
    """
    cloud = config.options["cloud"]
    where = f"environment {config.name}"
    if cloud["budget"] is not None and cloud["price"] is None:
        raise XpError(f"{where}: options.cloud.budget needs a price; set env.options.cloud.price")
    ways = ACCOUNTS.get(config.sandbox, ()) if config.sandbox is not None else ()
    if not ways:
        return
    episode_s = config.limits.episode_timeout_s
    needed_s = episode_s + verifier_s
    if 60 * cloud["max_minutes"] < needed_s:
        raise XpError(
            f"{where}: a sandbox ends after env.options.cloud.max_minutes={cloud['max_minutes']}, and an episode may take"
            f" {episode_s:g} s and its scoring {verifier_s:g} s; set"
            f" env.options.cloud.max_minutes={math.ceil(needed_s / 60)} or more, or a shorter"
            " env.limits.episode_timeout_s"
        )
    if not any(set(names) <= set(config.secrets) for names in ways):
        declared = " ".join(f"env.secrets.{name}=null" for name in ways[0])
        raise XpError(
            f"{where}: env.sandbox={config.sandbox} needs {' and '.join(ways[0])} of your account: set {declared}, which"
            f" declares {'it' if len(ways[0]) == 1 else 'them'}",
            ExitCode.SECRET,
        )


def check_variables(config: EnvConfig, names: Iterable[str]) -> None:
    """Raises XpError(SECRET) if tasks or the program ask for one of the account's variables, by these names."""
    asked = sorted(account_variables(config.sandbox) & set(names))
    if asked:
        raise XpError(
            f"environment {config.name}: a task or the program asks for {asked[0]}, the key of your account, which no"
            " sandbox gets; remove it there",
            ExitCode.SECRET,
        )
