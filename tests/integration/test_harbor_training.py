"""A training on Harbor's task folders: prepare, model, train and evaluate, without a container."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.harbor_tasks import left_over, write_task
from tests.support.small_training import two_steps_are_played

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1500)]


def test_two_steps_on_trl_train_and_evaluate_without_a_void_episode(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "sandboxes"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for split, count in (("train", 4), ("test", 2)):
        for number in range(count):
            write_task(tmp_path / "tasks" / split / f"task_{number}")
    words = [
        "env=harbor",
        f"env.target={tmp_path / 'tasks'}",
        "env.sandbox=none",
        f"outputs={tmp_path / 'outputs'}",
    ]
    # The model earns nothing.
    more = ("model=tiny", "env.max_turns=2", "training.entropy_coef=0.01")
    two_steps_are_played([*words, *more], tmp_path / "outputs")
    assert "without isolation" in capfd.readouterr().out
    assert not [name for name in left_over(place) if "xp-harbor" in name or "process" in name]
