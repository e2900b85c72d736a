"""A page of several runs in a real browser: what differs, curves over each other, seeds as a band, the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Watched, chromium, needs_chromium
from tests.support.report_run import make_run
from xp.cli.report import write_page

pytestmark = [pytest.mark.integration, needs_chromium]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Two seeds of one spec, and two runs with another learning rate."""
    outputs = tmp_path_factory.mktemp("several")
    runs = [
        make_run(outputs, "one", seed=1, num_steps=2),
        make_run(outputs, "two", seed=2, num_steps=2),
        make_run(outputs, "slow", gain=0.1, num_steps=2, training__learning_rate=1e-5),
        make_run(outputs, "fast", gain=0.9, num_steps=2, training__learning_rate=1e-3),
    ]
    target: Path = outputs / "page.html"
    write_page(runs, target)
    with chromium() as browser:
        found = Watched(browser, viewport={"width": 1200, "height": 900})
        found.open(target.as_uri())
        yield found


def column(page: Any, number: int) -> list[str]:
    return [cell.inner_text() for cell in page.locator(f"#runs tbody td:nth-child({number})").all()]


def test_the_table_has_a_column_for_each_key_that_differs_and_sorts(watched: Watched) -> None:
    page = watched.page
    heads = [head.inner_text() for head in page.locator("#runs th").all()]
    assert heads[:6] == ["run", "before", "after", "verdict", "seed", "training.learning_rate"]
    page.locator("#runs th button", has_text="after").click()
    assert column(page, 1) == ["fast", "one", "two", "slow"]
    page.locator("#runs th button", has_text="after").click()
    assert column(page, 1)[0] == "slow"
    assert watched.problems == []


def test_seeds_are_one_line_with_a_band_or_lines_of_their_own(watched: Watched) -> None:
    page = watched.page
    legend = page.locator("#over .chart.large .u-series:not(.quiet) th .u-label")
    assert [label.inner_text() for label in legend.all()] == [
        "rollout step",
        "learning_rate 0.002: mean of 2 seeds",
        "seed 1, learning_rate 1e-05",
        "seed 1, learning_rate 0.001",
    ]
    page.uncheck("#bands")
    page.wait_for_selector("#over .chart.large canvas")
    assert len(legend.all()) == 5
    for axis in ("episodes", "time"):
        page.select_option("#axis", axis)
        page.wait_for_selector("#over .chart.large canvas")
    assert watched.problems == []


def test_runs_are_compared_task_by_task_with_the_first(watched: Watched) -> None:
    said = watched.page.inner_text("#pairs")
    assert "Each against one on the same held-out tasks" in said
    assert "fast is better than one by 0.400" in said
    assert "slow is worse than one by 0.400" in said
