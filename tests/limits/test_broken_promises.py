"""The native keys that silently break a promise: the pinned code still does it, so that a new pin asks again."""

from __future__ import annotations

import pytest

from tests.limits.words import has, place_of
from tests.support.tables import rows

CHECKOUTS = {"slime": "SLIME_PATH", "megatron": "MEGATRON_PATH"}
"""Package -> variable with its checkout."""
WORDS = [case for case in rows("broken_promises") if case.values[2]]


@pytest.mark.parametrize(("section", "row", "lines"), WORDS)
def test_the_pinned_code_does_what_xp_refuses(section: str, row: str, lines: list[str]) -> None:
    del section, row
    for line in lines:
        name, _, words = line.partition(" | ")
        top = name.partition("/")[0]
        place = place_of(f"{CHECKOUTS[top]}/{name}" if top in CHECKOUTS else name)
        assert has(place, " ".join(words.split()))
