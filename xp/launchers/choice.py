"""`launcher=NAME` -> the launcher."""

from __future__ import annotations

from pathlib import Path

from xp.launchers.base import Launcher
from xp.spec.place import LauncherName, LauncherSpec


def make_launcher(spec: LauncherSpec, outputs: Path) -> Launcher:
    """The one that the spec names, for runs below this outputs root.

    Args:
        spec: the launcher's section.
        outputs: the outputs root.
    """
    match spec.name:
        case LauncherName.LOCAL:
            from xp.launchers.local import LocalLauncher

            return LocalLauncher(spec.grace_s)
        case LauncherName.SLURM:
            from xp.launchers.slurm import SlurmLauncher

            return SlurmLauncher(spec, outputs)
        case LauncherName.RAY:
            from xp.launchers.ray import RayLauncher

            return RayLauncher(spec, outputs)
        case LauncherName.MODAL:
            from xp.launchers.modal import ModalLauncher

            return ModalLauncher(spec, outputs)
