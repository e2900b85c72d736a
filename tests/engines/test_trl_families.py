"""backend=trl with the real vLLM on this machine's CPU, for checkpoints with parts for pictures and sound.

Of the families whose code in vLLM imports torchvision, which requirements/vllm.lock does not have, none is here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import needs_vllm
from tests.engines.test_trl import BAR, configured, trained

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize("family", ["gemma4"])
def test_vllm_samples_with_the_weights_of_each_update(family: str, tmp_path: Path) -> None:
    gaps, result = trained(tmp_path, configured(tmp_path, 2, family=family), {})
    print([f"{gap:.1e}" for gap in gaps], result["engine"])
    assert result["engine"]["vllm"].startswith("0.30")
    assert len(gaps) == 2
    assert max(gaps) < BAR


def test_a_transfer_that_is_left_out_shows(tmp_path: Path) -> None:
    gaps, _ = trained(tmp_path, configured(tmp_path, 2, family="gemma4"), {"2": "stale"})
    assert gaps[0] < BAR < gaps[1]
