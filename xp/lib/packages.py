"""Packages that some commands need and the core does not, and the command that installs them here."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

from xp.errors import ExitCode, XpError
from xp.lib.code_files import find_module

_ROOT = Path(__file__).resolve().parents[2]
IS_CLONE: Final = (_ROOT / "Makefile").is_file() and Path(sys.prefix).is_relative_to(_ROOT)
"""True if this environment was made by `make setup` or `make demo` in a clone: only there a message may name `make`."""

OTHER_NAMES: Final = {"PIL": "pillow"}
"""Module -> package of another name."""


def require(purpose: str, *modules: str) -> None:
    """Raises XpError(RUNTIME), with the command that installs them, if modules cannot be imported here."""
    specs = {module: find_module(module) for module in modules}
    # Without an origin: a directory of this name.
    missing = [module for module, spec in specs.items() if spec is None or spec.origin is None]
    if missing:
        what = f"{purpose} needs {' and '.join(missing)}"
        raise XpError(f"{what}; install: {install_command(*missing)}", ExitCode.RUNTIME)


def install_command(*modules: str) -> str:
    """The command that installs the packages of these modules for this Python."""
    if IS_CLONE and all(map(is_optional, modules)):
        return "make setup"
    wanted = [
        requirements().get(_package(module), OTHER_NAMES.get(module, module)) for module in modules
    ]
    return f"{sys.executable} -m pip install {shlex.join(wanted)}"


def is_optional(module: str) -> bool:
    """Returns whether a module is of a package that xp can use and may be missing."""
    return _package(module) in requirements()


def fix(module: str | None) -> str:
    """End of a message about a missing module: the command that installs it; empty if it is none of xp's packages."""
    if module is not None and is_optional(module):
        return f"; install: {install_command(module)}"
    return ""


@cache
def requirements() -> Mapping[str, str]:
    """Package -> requirement with its versions, of xp's dependencies and extras; empty in a copy of its code alone."""
    try:
        texts = [line.partition(";")[0].strip() for line in requires("xp-rl") or ()]
    except PackageNotFoundError:
        return {}
    return {re.split(r"[^\w.-]", text, maxsplit=1)[0].lower(): text for text in texts}


def _package(module: str) -> str:
    top = module.partition(".")[0].replace("_", "-")
    return OTHER_NAMES.get(top, top)
