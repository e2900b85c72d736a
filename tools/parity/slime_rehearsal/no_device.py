"""Replacements of Slime's imports that need a GPU, for a machine without one.

torchvision and torch_memory_saver (CUDA builds only) are empty modules, and Slime's own accelerator registry gets an
entry that has no device. Nothing of Slime, Megatron-LM, SGLang's argument parser, its router or Ray is replaced.
Standard library only, and nothing of xp: tests/trainers/slime_stubs runs it at the start of every Python process.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any


class _Named(type):
    """A class whose attributes are their own names, for tables that are built at import."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # With Slime's patch, Megatron allocates its buffers within `torch_memory_saver.region(...)`.
        if name == "region":
            return lambda **_: contextlib.nullcontext()
        return name


class _Empty(types.ModuleType):
    """A module with every attribute, as long as none is used."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})


class _EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of modules that are not available on this machine."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in {"torchvision", "torch_memory_saver"}:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = "0"  # type: ignore[attr-defined]


class _DoneAfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after its import."""

    def __init__(self, name: str, then: Any) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        native = spec.loader.exec_module
        then = self._then

        def exec_module(module: types.ModuleType) -> None:
            native(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _without_device(module: types.ModuleType) -> None:
    from slime.utils.accelerator.cuda import CUDAAccelerator

    class NoDevice(CUDAAccelerator):  # type: ignore[misc]
        name = "none-here"
        device_type = "cpu"
        communication_backend_name = "gloo"

        def is_available(self) -> bool:
            return True

        def device_count(self) -> int:
            return 8

        def current_device(self) -> int:
            return 0

        def set_device(self, index: Any) -> None:
            del index

        def synchronize(self, device: Any = None) -> None:
            del device

        def empty_cache(self) -> None:
            pass

    module.register_accelerator("none-here", NoDevice, lambda: True, 1000, ("gloo",))


def _hopper(module: types.ModuleType) -> None:
    """Replaces the compute capability, which Megatron's check of arguments reads."""
    module.get_device_properties = lambda *_: types.SimpleNamespace(major=9, minor=0)  # type: ignore[attr-defined]
    module.get_device_capability = lambda *_: (9, 0)  # type: ignore[attr-defined]


ACCELERATOR = "none-here"
"""Value of SLIME_ACCELERATOR that selects these replacements."""


def install() -> None:
    """Installs the replacements; must be called before Slime or Megatron-LM is imported."""
    sys.meta_path[:0] = [
        _EmptyModules(),
        _DoneAfterImport("slime.utils.accelerator", _without_device),
        *([] if "torch.cuda" in sys.modules else [_DoneAfterImport("torch.cuda", _hopper)]),
    ]
    if "torch.cuda" in sys.modules:
        _hopper(sys.modules["torch.cuda"])
