"""The planner's verdict on public configurations that are known to run or to run out of memory (docs/memory.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.public_memory import ENTRIES, LARGEST, RUNS, judged, page, spec_of, states_of
from xp.planning.memory.fit import MemoryVerdict, memory_refusals

TOO_LARGE = "runs out of memory"


def agrees(outcome: str, verdict: MemoryVerdict) -> bool:
    """Returns whether a verdict is right: what runs must fit as expected, what does not must not be called safe."""
    if outcome == RUNS:
        return verdict in (MemoryVerdict.FITS, MemoryVerdict.LIKELY)
    return verdict is not MemoryVerdict.FITS


def test_there_are_enough_of_both_kinds_and_each_has_its_source() -> None:
    agreed = [entry["outcome"] for entry in ENTRIES if "disagrees" not in entry]
    assert agreed.count(RUNS) >= 12
    assert agreed.count(TOO_LARGE) >= 4
    assert {entry["outcome"] for entry in ENTRIES} == {RUNS, TOO_LARGE}
    assert all(entry["source"].startswith("https://github.com/") for entry in ENTRIES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_the_planner_agrees_but_where_it_says_that_it_does_not(entry: dict[str, Any]) -> None:
    assert agrees(entry["outcome"], judged(entry["name"]).verdict) is ("disagrees" not in entry)


@pytest.mark.parametrize("entry", LARGEST, ids=lambda entry: entry["name"])
def test_the_largest_stage_is_that_of_a_count_elsewhere(entry: dict[str, Any]) -> None:
    assert states_of(entry) == pytest.approx(entry["states"], rel=0.1)
    if (stated := entry.get("host")) is not None:
        assert sum(judged(entry["name"]).worst.host.values()) / 1e9 == pytest.approx(
            stated, rel=0.2
        )
    refused = [str(one) for one in memory_refusals(spec_of(entry["name"]))]
    assert (refused == []) is (entry["outcome"] == RUNS), refused


def test_the_page_is_current() -> None:
    file = Path(__file__).parents[2] / "docs/memory.md"
    assert file.read_text(encoding="utf-8") == page(), "run make docs"
