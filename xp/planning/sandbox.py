"""Commands of a model need a place to run: what a plan says of it, and refuses."""

from __future__ import annotations

from collections.abc import Iterator

from xp.backends.base import Refusal
from xp.envs.config import SandboxKind
from xp.envs.harbor.docker_sandbox import check_daemon
from xp.envs.harbor.provider import WARNING
from xp.errors import XpError
from xp.spec import LauncherName, RunSpec


def sandbox_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Docker that is not there, on this machine; elsewhere the stage finds out."""
    if spec.launcher.name != LauncherName.LOCAL:
        return
    for name, member in spec.env.members.items():
        if member.sandbox is SandboxKind.DOCKER:
            try:
                check_daemon()
            except XpError as error:
                key = "env" if len(spec.env.members) == 1 else f"env.members.{name}"
                yield Refusal(f"{key}.sandbox", str(error))


def sandbox_lines(spec: RunSpec) -> list[str]:
    """The warning of a run whose commands are not isolated."""
    return [WARNING] if any(member.sandbox is SandboxKind.NONE for member in spec.env.members.values()) else []
