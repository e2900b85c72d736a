"""Public training scripts in xp's words: each is planned, and every key has a place or a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

import tools.public_scripts
from tools.public_scripts import main, page, scripts
from xp.cli.native import KeyResult

SCRIPTS = scripts()
ROOT = Path(__file__).parents[2]
RECIPES = [
    script.words[0].removeprefix("recipes=")
    for script in SCRIPTS.values()
    if len(script.words) == 1
]
CHECKOUTS = {"THUDM/slime": "SLIME_PATH", "NovaSky-AI/SkyRL": "SKYRL_PATH"}
"""Repository -> variable with its checkout."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_key_has_a_place_or_a_sentence(name: str) -> None:
    script = SCRIPTS[name]
    rows = script.rows
    assert {row.key for row in rows if row.result is not KeyResult.UNSET} == {*script.keys}
    assert [row.key for row in rows if not script.reason(row)] == []
    equal = {row.key for row in rows if row.result is KeyResult.EQUAL}
    assert {*script.reasons} & equal == set(), "called different and is not"
    assert {*script.reasons} <= {*script.keys}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_of_a_script_says_what_to_expect(recipe: str) -> None:
    head = (ROOT / f"recipes/{recipe}.yaml").read_text(encoding="utf-8").partition("defaults:")[0]
    assert "# Expect: " in head


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/public-scripts.md").read_text(encoding="utf-8") == page(), "run make docs"


@pytest.mark.parametrize(
    "name", [name for name, one in SCRIPTS.items() if one.source.partition("@")[0] in CHECKOUTS]
)
def test_the_keys_are_the_script_s(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, _, place = SCRIPTS[name].source.partition("@")
    if (checkout := os.environ.get(CHECKOUTS[repository])) is None:
        pytest.skip(f"needs a checkout of {repository}: {CHECKOUTS[repository]}=...")
    monkeypatch.setattr(tools.public_scripts, "FACTS", tmp_path)
    main(name, "", str(Path(checkout) / place.partition("/")[2]))
    assert yaml.safe_load((tmp_path / f"{name}.yaml").read_text())["keys"] == dict(
        SCRIPTS[name].keys
    )
