"""`parity measure` of SkyRL: every option within the bar, or explained; faults of its critic and its ranks are seen."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.planted_faults import differences
from tests.trainers.skyrl_faults import FAULTS, NOTHING
from tools.parity.measure import measure, table, unexplained
from tools.parity.recorded import BAR

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    return differences("tests.trainers.skyrl_faults", tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_a_planted_fault_is_seen_and_nothing_without_one(name: str, seen: dict[str, float]) -> None:
    assert seen[name] < BAR if name.startswith(NOTHING) else seen[name] > BAR


def test_every_option_is_the_papers_or_explained() -> None:
    measured = measure((), ["skyrl"], {"skyrl": sys.executable})
    print("\n".join(table(measured)))
    assert unexplained(measured) == []
