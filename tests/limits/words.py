"""Looks for the words of a limit in the code of an installed package or a checkout, so that a new pin asks again."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path


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
