"""Imports objects by name: `package.module:attribute`, as in specs and entry points."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any

from xp.lib.loaded_code import watch


def load_object(name: str) -> Any:
    """The module or the object that `module` or `module:attribute` names; raises ImportError or AttributeError."""
    watch()
    module, _, attribute = name.partition(":")
    loaded = import_module(module)
    if attribute:
        return attrgetter(attribute)(loaded)
    return loaded
