"""Keeps Hydra from importing plugins of the working directory, or of any other place than its own."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = "hydra_plugins"
"""Hydra imports each module of this package, which every directory on `sys.path` can extend."""


def hide_foreign_plugins() -> None:
    """Limits Hydra's plugins to those that are installed beside Hydra; must be called before Hydra starts."""
    hydra = find_spec("hydra")
    if PACKAGE in sys.modules or hydra is None or hydra.origin is None:
        return
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(Path(hydra.origin).parents[1] / PACKAGE)]
    sys.modules[PACKAGE] = module_from_spec(spec)
