"""The plan's bytes of a logit are those that TRL's own loss takes on the CPU."""

from __future__ import annotations

import pytest

from tests.trainers.memory_slopes import measured, planned, word_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_plan_counts_what_a_logit_takes_in_trls_loss() -> None:
    found = measured("trl")["loss"]
    plan = planned("backend=trl")
    assert found.logit == pytest.approx(plan.logit_bytes, abs=0.1)
    assert found.word == pytest.approx(word_bytes(plan.logit_bytes, plan.head_bytes), rel=0.1)
