"""Calls a function while the modules of a directory are found first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

A = TypeVar("A")
T = TypeVar("T")


def found_at(place: Path, function: Callable[[A], T], argument: A) -> T:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        return function(argument)
