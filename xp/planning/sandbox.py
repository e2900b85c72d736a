"""Refusals and warnings of a plan about the sandbox of a model's commands."""

from __future__ import annotations

from collections.abc import Iterator

from xp.envs.config import SandboxKind
from xp.envs.docker import NO_SANDBOX, check_daemon
from xp.errors import XpError
from xp.planning.backend import Refusal
from xp.spec import LauncherName, RunSpec
from xp.spec.env import HOSTED


def sandbox_refusals(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses a missing Docker on this machine; elsewhere the stage checks, except for files that a cloud cannot
    see."""
    name = spec.launcher.name
    if isinstance(name, LauncherName) and name.is_elsewhere:
        yield from _left_behind(spec)
    if spec.launcher.name != LauncherName.LOCAL:
        return
    for name, member in spec.env.members.items():
        if member.sandbox is SandboxKind.DOCKER:
            try:
                check_daemon()
            except XpError as error:
                key = "env" if len(spec.env.members) == 1 else f"env.members.{name}"
                yield Refusal(f"{key}.sandbox", str(error))


def _left_behind(spec: RunSpec) -> Iterator[Refusal]:
    """Refuses files of this machine that an environment needs and a cloud's machine cannot see."""
    there = "Modal's containers" if spec.launcher.name is LauncherName.MODAL else "SkyPilot's machines"
    way_out = "launcher=local, slurm and ray run where these files are"
    for name, member in spec.env.members.items():
        key = "env" if len(spec.env.members) == 1 else f"env.members.{name}"
        if member.python is not None:
            yield Refusal(f"{key}.python", f"{member.python} is on this machine and not in {there}; {way_out}")
        elif member.provider in HOSTED:
            reason = f"{member.provider} needs its package, which {there} do not get; {way_out}"
            yield Refusal(f"{key}.provider", reason)
        if member.provider == "harbor" or (member.provider == "inspect" and ".py" in str(member.target)):
            yield Refusal(f"{key}.target", f"{member.target} is on this machine and not in {there}; {way_out}")


def sandbox_lines(spec: RunSpec) -> list[str]:
    """A warning for a run whose commands are not isolated."""
    return [NO_SANDBOX] if any(member.sandbox is SandboxKind.NONE for member in spec.env.members.values()) else []
