"""SkyRL's servers of vLLM that die in a run on this machine's CPU (make test-vllm)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import needs_vllm

pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")

from tests.support.resuming import lose_once, process_with
from xp.errors import ExitCode

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(3700)]
SERVED = (
    "backend=skyrl",
    "hardware=cpu",
    "backend.engine.name=vllm",
    "backend.engine.memory_fraction=0.1",
)


def test_a_run_resumes_after_its_engine_was_killed(tmp_path: Path) -> None:
    loss = lose_once(tmp_path, lambda tree: process_with("VLLM::EngineCore", tree).kill(), *SERVED)
    assert loss.exit_code == ExitCode.ENGINE
    assert "; the end of " in loss.log
