"""Public training scripts in xp's words: each is planned, and every key has a place or a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.public_scripts import page, scripts
from xp.contrib.native_diff.difference import KeyResult

SCRIPTS = scripts()
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_has_a_place_or_a_sentence(name: str) -> None:
    script = SCRIPTS[name]
    rows = script.rows
    assert {row.key for row in rows if row.result is not KeyResult.UNSET} == {*script.keys}
    assert [row.key for row in rows if not script.reason(row)] == []
    equal = {row.key for row in rows if row.result is KeyResult.EQUAL}
    assert {*script.reasons} & equal == set(), "called different and is not"
    assert {*script.reasons} <= {*script.keys}


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/public-scripts.md").read_text(encoding="utf-8") == page(), "run make docs"
