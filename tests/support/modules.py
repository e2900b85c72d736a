"""Modules of a directory on the path."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

A = TypeVar("A")
T = TypeVar("T")


def found_at(place: Path, function: Callable[[A], T], argument: A) -> T:
    """Calls a function while the modules of a directory are found first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        return function(argument)


def alone(module: str, place: Path, patch: pytest.MonkeyPatch) -> str:
    """Copies a module of these tests into a directory, which is put on the path; returns its name there.

    A run reads and copies all files of a module's package, and of `tests` that takes a second.
    """
    source = Path(__file__).parents[1] / f"{module}.py"
    shutil.copy(source, place)
    patch.syspath_prepend(place)
    return source.stem
