"""`parity measure` of Slime: every option within the bar, or explained; planted faults are seen."""

from __future__ import annotations

import sys

import pytest

from tests.trainers.planted_faults import differences
from tests.trainers.slime_faults import FAULTS, NOTHING
from tests.trainers.slime_setup import needs_slime
from tools.parity.measure import measure, table, unexplained
from tools.parity.options import OPTIONS
from tools.parity.recorded import BAR

pytestmark = [needs_slime, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return differences("tests.trainers.slime_faults", tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_a_planted_fault_is_seen_and_nothing_without_one(name: str, seen: dict[str, float]) -> None:
    assert seen[name] < BAR if name.startswith(NOTHING) else seen[name] > BAR


def test_what_is_reported_of_two_updates_of_two_micro_batches_is_what_the_page_says() -> None:
    options = [
        one
        for one in OPTIONS
        if one.name in ("updates_per_step=2", "ppo, sequence_mean, a narrow value clip")
    ]
    assert (
        unexplained(
            measure(
                (),
                ["slime"],
                {"slime": sys.executable},
                options,
            )
        )
        == []
    )


@pytest.mark.slow
def test_every_option_is_the_papers_or_explained() -> None:
    measured = measure((), ["slime"], {"slime": sys.executable})
    print("\n".join(table(measured)))
    assert unexplained(measured) == []
