"""The picture of a run is drawn after it, by whoever looks, and its failure is a sentence and nothing more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xp.cli.curve import picture_of
from xp.episode.metrics_file import MetricsFile

RESULT = {"reward_mean": 0.5, "reward_stderr": None}


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """An evaluation of a run of three steps."""
    file = MetricsFile(tmp_path / "metrics.jsonl", "train", 1)
    for step in (1, 2, 3):
        file.write(step, {"reward/avg_raw_reward": step / 3})
    path = tmp_path / "attempt_1" / "evaluate" / "evaluation.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"results": {"before": RESULT, "after": RESULT}}))
    return path


def test_the_picture_lies_beside_the_evaluation_and_is_drawn_once(tmp_path: Path, evaluation: Path) -> None:
    warnings: list[str] = []
    picture = picture_of(tmp_path, evaluation, warnings.append)
    assert picture == evaluation.with_name("reward_curve.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    drawn = picture.stat().st_mtime_ns
    assert picture_of(tmp_path, evaluation, warnings.append) == picture
    assert (picture.stat().st_mtime_ns, warnings) == (drawn, [])
    assert sorted(path.name for path in picture.parent.iterdir()) == ["evaluation.json", "reward_curve.png"]


def test_an_unwatched_run_gets_its_picture_when_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.launching import plan, run, stage
    from xp.cli.runs import show

    write = 'open("runs/run/attempt_1/evaluate/evaluation.json", "w").write(\'{"results": {}}\')'
    make = "import os; os.makedirs('runs/run/attempt_1/evaluate', exist_ok=True); open('runs/run/metrics.jsonl', 'w')"
    run(plan(stage("a", f"{make}; {write}")), tmp_path)
    show(tmp_path / "runs/run")
    assert (tmp_path / "runs/run/attempt_1/evaluate/reward_curve.png").is_file()
    assert "reward curve" in capsys.readouterr().out
