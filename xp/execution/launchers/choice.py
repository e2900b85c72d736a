"""Makes the launcher for `launcher=NAME`."""

from __future__ import annotations

from pathlib import Path

from xp.errors import ExitCode, XpError
from xp.execution.launchers.base import Detachable, Launcher, LauncherModule
from xp.lib.plugins import Kind, load
from xp.spec.place import LauncherSpec


def make_launcher(spec: LauncherSpec, outputs: Path) -> Launcher:
    """The spec's launcher, for runs below this outputs root.

    Args:
        spec: the launcher's section.
        outputs: the outputs root.

    Raises:
        XpError: a plugin's launcher cannot be imported, or does not support `detach`.
    """
    module: LauncherModule = load(Kind.LAUNCHER, spec.name, needs=("make_launcher", "limit"))
    launcher = module.make_launcher(spec, outputs)
    if spec.detach and not isinstance(launcher, Detachable):
        reason = f"launcher={spec.name} has no jobs that continue without this process"
        raise XpError(f"launcher.detach: {reason}; set it to false", ExitCode.PLAN)
    return launcher
