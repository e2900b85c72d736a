"""The native keys that silently break a promise: the pinned code still does it, so that a new pin asks again."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.limits.words import has, package
from tests.support.tables import rows

CHECKOUTS = {"slime": "SLIME_PATH", "megatron": "MEGATRON_PATH"}
"""Package -> variable with its checkout."""
WORDS = [case for case in rows("broken_promises") if case.values[2]]


@pytest.mark.parametrize(("section", "row", "lines"), WORDS)
def test_the_pinned_code_does_what_xp_refuses(section: str, row: str, lines: list[str]) -> None:
    del section, row
    for line in lines:
        name, _, words = line.partition(" | ")
        top, _, file = name.partition("/")
        if top in CHECKOUTS:
            if CHECKOUTS[top] not in os.environ:
                pytest.skip(f"needs a checkout: {CHECKOUTS[top]}=...")
            place = Path(os.environ[CHECKOUTS[top]]) / top / file
        else:
            if find_spec(top) is None:
                pytest.skip(f"{top} is not in this environment")
            place = package(top) / file
        assert has(place, " ".join(words.split()))
