"""Content of the git repository: no files that trial runs or editors left in the checkout."""

from __future__ import annotations

import pytest

from tests.support.child import ended
from tests.support.launching import ROOT

TOP = """.ci .github .gitignore AGENTS.md CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE Makefile README.md conf docs
    pyproject.toml recipes requirements runtimes tests tools xp"""
LARGEST = 2_000_000
"""Bytes of a file; the shipped model has 1.3 million."""


def test_git_has_known_things_at_the_top_and_no_large_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = ended(["git", "ls-files", "-z"], cwd=ROOT, check=True).stdout
    files = [name for name in listed.split("\0") if name]
    assert {name.split("/")[0] for name in files} == set(TOP.split())
    assert [
        name for name in files if (ROOT / name).is_file() and (ROOT / name).stat().st_size > LARGEST
    ] == []
