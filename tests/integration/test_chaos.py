"""A sample of `make chaos`: ten faults over the small embedded default, which ends as if there had been none.

Slow, all of it: two undisturbed runs and seven others, each a whole default. What the ordinary suite has of it is in
test_embedded_default.py (killed in `evaluate`, interrupted in `train`) and in reliability/test_prepare_kills.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import LATE, REFUSED, SAME, Undisturbed, disturbed, undisturbed
from tests.chaos.faults import BUILDS, is_root
from tests.chaos.place import BUILT, SMALL

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Undisturbed]:
    """Whether the run builds its model -> the undisturbed run."""
    root = tmp_path_factory.mktemp("chaos")
    return {False: undisturbed(root / "shipped", SMALL), True: undisturbed(root / "built", BUILT)}


@pytest.mark.scorecard(41)
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("kill", 2),
        ("disk", 1),
        ("clock", 1),
        ("server killed", 1),
        ("server restarted", 1),
        ("half-open TCP", 2),
        ("session expired", 2),
    ],
)
def test_a_run_that_was_disturbed_and_resumed_ends_as_the_undisturbed_one_or_refuses(
    tmp_path: Path, whole: dict[bool, Undisturbed], kind: str, number: int
) -> None:
    if kind == "disk" and not is_root():
        pytest.skip("a file system of its own can be mounted by root only")
    verdict = disturbed(kind, 17, tmp_path / "run", whole[kind in BUILDS], number)
    assert verdict.end in (SAME, REFUSED, LATE), verdict
