"""Changes of another package's code: functions that run when its module is imported, attributes with other values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Execute = Callable[[ModuleType], None]


def after_import(name: str, do: Callable[[ModuleType], None]) -> None:
    """Calls `do(module)` now if the module is loaded, else right after its import, if that ever happens.

    A second call with the same name and function does nothing.
    """
    loaded = sys.modules.get(name)
    if loaded is not None:
        do(loaded)
    else:
        around_import(name, _Then(do))


def around_import(name: str, around: Callable[[Execute, ModuleType], None]) -> None:
    """Calls `around(execute, module)`, which must call `execute(module)`, when the module is imported for the first
    time. A second call with the same name and function does nothing."""
    hook = _Hook(name, around)
    if hook not in sys.meta_path:
        sys.meta_path.insert(0, hook)


@dataclass(frozen=True)
class _Then:
    do: Callable[[ModuleType], None]

    def __call__(self, execute: Execute, module: ModuleType) -> None:
        execute(module)
        self.do(module)


@dataclass(frozen=True)
class _Hook(MetaPathFinder):
    name: str
    around: Callable[[Execute, ModuleType], None]

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, self.around)
        return spec


class _HookedLoader(Loader):
    def __init__(self, loader: Loader, around: Callable[[Execute, ModuleType], None]) -> None:
        self._loader = loader
        self._around = around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._around(self._loader.exec_module, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Context manager: these attributes of an object or a module have these values within it."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
