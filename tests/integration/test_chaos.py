"""A sample of `make chaos`: the small embedded default, broken at random points, ends as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import LATE, REFUSED, SAME, Undisturbed, disturbed, undisturbed
from tests.chaos.faults import is_root

SAMPLE = [
    *(("kill", seed) for seed in range(3)),
    ("kills", 7),
    *(("disk", 1), ("server killed", 2), ("server restarted", 3)),
    *(("clock", 4), ("half-open TCP", 5), ("session expired", 6)),
]
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return undisturbed(tmp_path_factory.mktemp("chaos") / "undisturbed")


@pytest.mark.scorecard(41)
@pytest.mark.parametrize(
    ("kind", "seed"),
    SAMPLE,
)
def test_a_run_that_was_disturbed_and_resumed_ends_as_the_undisturbed_one_or_refuses(
    tmp_path: Path, whole: Undisturbed, kind: str, seed: int
) -> None:
    if kind == "disk" and not is_root():
        pytest.skip("a file system of its own can be mounted by root only")
    verdict = disturbed(kind, seed, tmp_path / "run", whole)
    assert verdict.end in (SAME, REFUSED, LATE), verdict
