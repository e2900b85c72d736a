"""`launcher=NAME` -> the launcher."""

from __future__ import annotations

from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.launchers.base import Launcher
from xp.spec.place import LauncherName, LauncherSpec


def make_launcher(spec: LauncherSpec, outputs: Path) -> Launcher:
    """The one that the spec names, for runs below this outputs root."""
    match spec.name:
        case LauncherName.LOCAL:
            from xp.launchers.local import LocalLauncher

            return LocalLauncher(spec.grace_s)
        case LauncherName.SLURM:
            from xp.launchers.slurm import SlurmLauncher

            return SlurmLauncher(spec, outputs)
        case _:
            raise XpError(f"launcher={spec.name} is not built yet", ExitCode.PLAN)
