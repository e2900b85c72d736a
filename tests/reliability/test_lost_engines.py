"""A lost engine ends the stage, and launcher.max_restarts resumes it (engines of other processes: tests/engines)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.resuming import lose_once, process_with


@pytest.mark.integration
@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_trl_resumes_when_the_process_with_policy_and_engine_is_killed(tmp_path: Path) -> None:
    loss = lose_once(
        tmp_path, lambda tree: process_with("xp.backends.trl.worker.train", tree).kill()
    )
    assert loss.exit_code == 137
