"""Cases of one test of which the ordinary tests take some, and `make test-slow` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], number: int) -> list[Any]:
    """All values as cases; those after the first `number` are marked slow."""
    cases = [value if isinstance(value, tuple) else (value,) for value in values]
    return [
        pytest.param(*case, marks=() if place < number else pytest.mark.slow)
        for place, case in enumerate(cases)
    ]
