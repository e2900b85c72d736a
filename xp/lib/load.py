"""Finds and imports objects by name: `package.module:attribute`, as in specs and entry points."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from typing import Any


def load_object(name: str) -> Any:
    """The module or the object that `module` or `module:attribute` names; raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    return attrgetter(attribute)(loaded) if attribute else loaded


def find_module(module: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    """Finds a module like `importlib.util.find_spec`, but without importing the parents of a dotted name.

    Args:
        module: its name.
        path: directories to search; None: `sys.path`.
    """
    where = None if path is None else list(path)
    spec = None
    for part in module.split("."):
        # The last part of the name alone: for a dotted one, a namespace package looks for its parent in sys.modules.
        spec = PathFinder.find_spec(part, where)
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    return spec
