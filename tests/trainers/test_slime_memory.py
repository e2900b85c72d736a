"""The plan's bytes of a logit are those that Slime's loss takes behind Megatron's conversion, on the CPU."""

from __future__ import annotations

import pytest

from tests.trainers.memory_slopes import measured, planned, word_bytes
from tests.trainers.slime_setup import needs_slime

pytestmark = [needs_slime, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_plan_counts_what_a_logit_takes_in_slimes_loss() -> None:
    found = measured("slime")["loss"]
    plan = planned("env=whodunit", "backend=slime", "hardware=a100x4")
    assert found.logit == pytest.approx(plan.logit_bytes, rel=0.05)
    assert found.word == pytest.approx(word_bytes(plan.logit_bytes, plan.head_bytes), rel=0.05)
