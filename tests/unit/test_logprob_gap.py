"""training.max_logprob_gap: the run stops where the engine does not write with the weights that are trained."""

from __future__ import annotations

import math

import pytest

from xp.errors import ExitCode, XpError
from xp.worker.step_log import check_gap


def test_a_gap_above_the_limit_stops_with_its_usual_cause() -> None:
    with pytest.raises(XpError) as caught:
        check_gap(3, 0.25, 0.1)
    assert caught.value.code is ExitCode.DIVERGED
    for part in (
        "rollout step 3",
        "0.25 a token",
        "training.max_logprob_gap=0.1",
        "1e-6 in float32",
        "max_logprob_gap=null to record it without a limit",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("gap", "limit", "code"),
    [(0.1, 0.1, None), (0.11, 0.1, ExitCode.DIVERGED), (5.0, None, None), (math.nan, 0.1, None)],
)
def test_only_a_gap_above_a_limit_stops_the_run(
    gap: float, limit: float | None, code: ExitCode | None
) -> None:
    try:
        check_gap(1, gap, limit)
        found = None
    except XpError as error:
        found = error.code
    assert found is code
