"""`launcher=NAME` -> the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xp.launchers.base import Launcher
from xp.spec.place import LauncherName, LauncherSpec


def make_launcher(spec: LauncherSpec, outputs: Path, pins: Mapping[str, str] | None = None) -> Launcher:
    """The one that the spec names, for runs below this outputs root.

    Args:
        spec: the launcher's section.
        outputs: the outputs root.
        pins: package -> version, for a launcher that makes the environment; not needed to look after what runs.
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

            return ModalLauncher(spec, outputs, pins or {})
