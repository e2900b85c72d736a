"""Pictures through SkyRL's real servers of vLLM on this machine's CPU: their pixels, and the log-probabilities."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import needs_vllm

pytest.importorskip("skyrl", reason="SkyRL with its real engine: make test-vllm")
pytest.importorskip("torchvision", reason="vLLM's processors of pictures need it")

from tests.support.tiny_vision import vision_model
from tests.trainers.test_skyrl_pictures import SMALL, leave_rows
from xp.episode.metrics_file import read_metrics

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(1500)]
BAR = 1e-4
"""Largest mean gap between engine and trainer of one set of weights in float32."""


def test_vllm_and_the_update_agree_on_rows_of_no_one_and_two_pictures(tmp_path: Path) -> None:
    start = vision_model("qwen2_vl", tmp_path / "start")
    leave_rows(tmp_path / "rows.jsonl")
    words = (
        *SMALL,
        *("backend.engine.name=vllm", "backend.engine.memory_fraction=0.1"),
        *("training.micro_batch_size=2", f"model.path={start}", f"outputs={tmp_path}/outputs"),
        *(f"env.rows={tmp_path}/rows.jsonl", f"backend.runtime.python={sys.executable}"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "xp", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (run,) = (tmp_path / "outputs/runs").iterdir()
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert all(line["episodes/void"] == 0 for line in lines)
    assert all(line["training/grad_norm"] > 0 for line in lines)
    assert max(line["training/logprob_gap"] for line in lines) < BAR
