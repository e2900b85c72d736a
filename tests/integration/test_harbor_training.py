"""A training on Harbor's task folders: prepare, model, train and evaluate, without a container."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests.support.harbor_tasks import left_over, write_task
from xp.__main__ import main

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
    few = ["training.num_steps=2", "training.prompts_per_step=2", "training.group_size=4", "evaluation.batch_size=8"]
    few += ["training.micro_batch_size=8", "training.max_response_tokens=24", "env.max_turns=2"]
    few += ["training.entropy_coef=0.01"]  # the model earns nothing
    words = ["env=harbor", f"env.target={tmp_path / 'tasks'}", "env.sandbox=none", f"outputs={tmp_path / 'outputs'}"]
    assert main([*words, "model=tiny", *few]) == 0
    assert "without isolation" in capfd.readouterr().out
    (run,) = (tmp_path / "outputs/runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["stage"] == "train"]
    assert [line["episodes/num"] for line in steps] == [8.0, 8.0]
    assert all(line.get("episodes/void", 0.0) == 0.0 for line in steps)
    assert json.loads((run / "attempt_1/evaluate/after/eval.json").read_text())
    assert not [name for name in left_over(place) if "xp-harbor" in name or "process" in name]
