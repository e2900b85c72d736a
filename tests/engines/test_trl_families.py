"""backend=trl with the real vLLM on this machine's CPU, for a checkpoint with parts for pictures and sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import needs_vllm
from tests.support.vllm_on_cpu import configured, trained

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 0.01
"""Largest gap of one set of weights: 0.006 before the first update, by vLLM's own arithmetic of this family."""


def test_vllm_samples_with_the_weights_of_each_update(tmp_path: Path) -> None:
    gaps, result = trained(
        tmp_path,
        configured(tmp_path, 3, family="gemma4"),
        {"3": "stale"},
    )
    print([f"{gap:.1e}" for gap in gaps], result["engine"])
    assert max(gaps[:2]) < BAR
    assert gaps[2] > 2 * BAR
