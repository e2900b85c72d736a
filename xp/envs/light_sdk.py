"""Imports the SDKs of environments without packages that only annotations, or pages that xp does not serve, need.

`import openreward` imports anthropic, openai and google-genai, for the upload of transcripts, and grpc, for an export
of metrics: two thirds of a served environment's start-up time. `import openenv` imports gradio, for a page to try an
environment by hand: three quarters of that time. Here they are imported at the first use of one of their names.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from xp.lib.load import import_large

VENDORS = ("anthropic", "openai", "google.genai", "opentelemetry.exporter")
OPENENV_PAGE = "openenv.core.env_server.web_interface"


def import_openreward() -> None:
    """Imports `openreward`, if it is installed; later imports find the vendors' real packages."""
    _import_without("openreward", VENDORS)


def import_openenv() -> None:
    """Imports the server of `openenv`, if it is installed; its page is imported at the first use of a name."""
    _import_without("openenv.core.env_server.http_server", (OPENENV_PAGE,))


def _import_without(package: str, parts: Sequence[str]) -> None:
    absent = [name for name in parts if name not in sys.modules]
    with contextlib.suppress(ModuleNotFoundError), _deferred(absent):
        import_large(package)


@contextlib.contextmanager
def _deferred(packages: Sequence[str]) -> Iterator[None]:
    finder = _VendorFinder(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.made:
            stub = sys.modules.pop(name)
            parent, _, last = name.rpartition(".")
            if vars(sys.modules.get(parent, sys)).get(last) is stub:
                delattr(sys.modules[parent], last)


class _VendorFinder:
    """Finder that gives empty modules below some packages; their names are _VendorName objects."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self.made: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not any(name == package or name.startswith(f"{package}.") for package in self._packages):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        def name_of(name: str) -> _VendorName:
            if name.startswith("__"):
                raise AttributeError(name)
            return _VendorName(self, spec.name, (name,))

        module = ModuleType(spec.name)
        module.__dict__["__getattr__"] = name_of
        self.made.append(spec.name)
        return module

    def exec_module(self, module: ModuleType) -> None:
        del module


class _VendorName:
    """Name in a module that is imported at the name's first use; an annotation does not use it."""

    def __init__(self, finder: _VendorFinder, module: str, path: tuple[str, ...]) -> None:
        self._finder = finder
        self._module = module
        self._path = path

    def _real(self) -> Any:
        target: Any = importlib.import_module(self._module)
        at = self._module
        for name in self._path:
            at = f"{at}.{name}"
            if hasattr(target, name):
                target = getattr(target, name)
            else:
                target = importlib.import_module(at)
        return target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._finder in sys.meta_path:
            return _VendorName(self._finder, self._module, (*self._path, name))
        return getattr(self._real(), name)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._real()(*args, **named)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)
