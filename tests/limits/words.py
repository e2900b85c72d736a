"""Looks for the words of a limit in the code of an installed package or a checkout, so that a new pin asks again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.tables import rows

CHECKOUTS = ("SLIME_PATH", "MEGATRON_PATH")
"""Variables with a checkout."""


def in_table(section: str) -> dict[str, Callable[[], None]]:
    """Tests of a section of tests/tables/words.txt, by their names."""
    cases = [case.values for case in rows("words", section)]
    return {f"test_{name}": _test_of(name, lines) for name, lines in cases}


def _test_of(name: str, lines: Sequence[str]) -> Callable[[], None]:
    def test() -> None:
        for line in lines:
            file, mark, words = re.split(r" (!?\|) ", line, maxsplit=1)
            if mark == "|":
                assert has(place_of(file), words)
            else:
                assert lacks(place_of(file), words)

    test.__name__ = f"test_{name}"
    return test


def place_of(file: str) -> Path:
    """A file or directory of an installed package or a checkout; skips the test where that is not here."""
    top, _, below = file.partition("/")
    if top in CHECKOUTS:
        if top not in os.environ:
            pytest.skip(f"needs a checkout: {top}=...")
        return Path(os.environ[top]) / below
    if find_spec(top) is None:
        pytest.skip(f"{top} is not in this environment")
    return package(top) / below


def package(name: str) -> Path:
    """Directory of an installed package, which is not imported."""
    spec = find_spec(name)
    places = None if spec is None else spec.submodule_search_locations
    assert places, f"{name} is not installed"
    return Path(places[0])


def code(place: Path) -> str:
    """Text of a file, or of all Python files below a directory, with each white space one blank."""
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    assert files, f"{place} has no code"
    return " ".join(" ".join(file.read_text(errors="replace").split()) for file in files)


def has(place: Path, *texts: str) -> bool:
    """Returns whether the code has all the texts, whatever its line breaks are; raises AssertionError with the first
    that it lacks."""
    content = code(place)
    missing = [text for text in texts if text not in content]
    assert not missing, f"{place} no longer has {missing[0]!r}: try again what the row refuses"
    return True


def lacks(place: Path, pattern: str) -> bool:
    """Returns whether no word of the code matches; raises AssertionError with the first that does."""
    match = re.search(pattern, code(place), re.IGNORECASE)
    assert match is None, f"{place} has {match[0]!r} now: try again what the row refuses"
    return True
