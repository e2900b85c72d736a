"""What xp uses of SkyRL has the form that skyrl_parts.json records: a failing test names the part that changed."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tools.catalogs.skyrl_parts import FILE, parts

RECORDED = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def installed() -> dict[str, str]:
    return parts()


def test_the_list_has_every_part_that_xps_code_uses_and_no_other(installed: dict[str, str]) -> None:
    assert set(installed) == set(RECORDED), (
        "python -m tools.catalogs.skyrl_parts, and review its diff"
    )


@pytest.mark.parametrize("part", RECORDED)
def test_a_part_has_the_form_that_xp_relies_on(part: str, installed: dict[str, str]) -> None:
    assert installed.get(part) == RECORDED[part]
    assert RECORDED[part] != "missing"
