"""Calls a function with another package's module as soon as that module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import(name: str, do: Callable[[ModuleType], None]) -> None:
    """Calls `do(module)` now if the module is loaded, else right after its import, if that ever happens.

    A second call with the same name and function does nothing.
    """
    if (loaded := sys.modules.get(name)) is not None:
        do(loaded)
    elif not any(isinstance(one, _AfterImport) and (one.name, one.do) == (name, do) for one in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(name, do))


class _AfterImport(MetaPathFinder):
    def __init__(self, name: str, do: Callable[[ModuleType], None]) -> None:
        self.name, self.do = name, do

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, self.do)
        return spec


class _HookedLoader(Loader):
    def __init__(self, loader: Loader, do: Callable[[ModuleType], None]) -> None:
        self._loader, self._do = loader, do

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._do(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
