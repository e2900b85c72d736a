"""SkyRL's own vLLM server, router, client and transfer of weights, as xp uses them on a CPU (make test-vllm)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import needs_vllm
from tests.support.skyrl_served import result_of
from tests.support.tiny import leave_model

pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 1e-4


def test_two_updates_reach_the_server_and_one_that_is_not_sent_shows(tmp_path: Path) -> None:
    base = tmp_path / "base"
    leave_model(base)
    found = result_of("tests.engines.skyrl_client", base, tmp_path)
    print({name: [f"{one:.1e}" for one in gaps] for name, gaps in found.items()})
    assert max(found["sent"]) < BAR
    assert min(found["stale"]) > BAR
