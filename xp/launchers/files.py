"""What a run takes with it: the job's files, and the package as it was when the run began."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from xp.errors import ExitCode, XpError
from xp.record import write_atomically

PACKAGE = Path(__file__).resolve().parent.parent


def write_files(files: Mapping[str, str], outputs: Path) -> None:
    """Write a job's files below the outputs root; one that is there with other content is never replaced."""
    for name, text in files.items():
        path = inside(outputs, name)
        if not path.exists():
            write_atomically(path, text)
        elif path.read_text(encoding="utf-8") != text:
            raise XpError(f"{path} exists with other content; nothing is overwritten", ExitCode.RUN_DIR)


def inside(outputs: Path, name: str) -> Path:
    """The path of a name below the outputs root; raises XpError(RUN_DIR) for one that leads out of it."""
    parts = PurePosixPath(name).parts
    is_plain = bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name
    path = outputs / name
    if not is_plain or not path.resolve().is_relative_to(outputs.resolve()):
        raise XpError(f"{name!r} leads out of {outputs}", ExitCode.RUN_DIR)
    return path


def copy_package(target: Path, package: Path = PACKAGE) -> None:
    """Copy the package, so that the code that ran is the code on record and a later edit changes no running job."""
    shutil.copytree(package, target / package.name, ignore=_left_out)


def _left_out(directory: str, names: list[str]) -> set[str]:
    skipped = {"__pycache__", "conf", "recipes"} if Path(directory) == PACKAGE else {"__pycache__"}
    return {name for name in names if name in skipped or name.endswith(".pyc") or name.startswith(".")} | {
        name for name in names if os.path.islink(os.path.join(directory, name))
    }
