"""The plan's bytes of a logit are those that SkyRL's FSDP worker takes on the CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.trainers.memory_slopes import measured, planned, word_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
BASE = ("env=whodunit", "backend=skyrl", "hardware=a100x4")


@pytest.mark.parametrize("attention", ["flash", "sdpa"])
def test_the_plan_counts_what_a_logit_takes_in_skyrls_worker(attention: str) -> None:
    found = measured("skyrl")[f"attention={attention}"]
    plan = planned(*BASE, f"backend.attention={attention}")
    assert found.logit == pytest.approx(plan.logit_bytes, rel=0.05)
    # SkyRL 0.4.0 takes 6 % more of a word here than the plan, whose 4 bytes agree with the published runs.
    # The plan counts the gathered copy of the embeddings under both, though it is freed before sdpa's peak.
    head_bytes = plan.head_bytes if attention == "flash" else 0.0
    assert found.word == pytest.approx(word_bytes(plan.logit_bytes, head_bytes), rel=0.07)


def test_the_plan_counts_what_an_entropy_takes_in_skyrls_worker() -> None:
    found = measured("skyrl")["attention=flash, entropy in one chunk"]
    assert found.logit == pytest.approx(planned(*BASE).entropy_bytes, rel=0.05)
