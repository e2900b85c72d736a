"""SkyRL trains the text network of checkpoints with a vision part, whose weights stay byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.tiny_media import media_model
from tests.trainers.skyrl_parts import REHEARSAL
from xp.episode.metrics_file import read_metrics
from xp.models.weights import is_of_text

ROOT = Path(__file__).parents[2]
SMALL = (
    *REHEARSAL,
    "env=sums",
    "model=hf",
    "model.dtype=float32",
    "env.train.num_tasks=4",
    "env.held_out.num_tasks=2",
    "training.prompts_per_step=2",
    "training.group_size=2",
    "training.micro_batch_size=2",
    "training.num_steps=1",
    "training.warmup_updates=0",
    "training.updates_per_step=1",
    "training.learning_rate=1e-3",
    "training.entropy_coef=0.01",
    "training.max_tokens_per_turn=8",
    "training.max_response_tokens=64",
)


def weights(directory: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {
        name: weight
        for file in directory.glob("*.safetensors")
        for name, weight in load_file(file).items()
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_a_checkpoint_with_a_vision_part_is_trained_on_text(family: str, tmp_path: Path) -> None:
    start = media_model(family, tmp_path / family)
    words = [*SMALL, f"model.path={start}", f"outputs={tmp_path}/outputs"]
    done = subprocess.run(
        [sys.executable, "-m", "xp", *words, f"backend.runtime.python={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (run,) = (tmp_path / "outputs/runs").iterdir()
    line = read_metrics(run / "metrics.jsonl", "train")[0]
    assert line["training/grad_norm"] > 0
    assert line["training/logprob_gap"] < 1e-5
    before = weights(start)
    after = weights(run / "model")
    assert set(before) - set(after) <= {"lm_head.weight"}
    changed = {name for name in before if name in after and not before[name].equal(after[name])}
    assert changed
    assert all(is_of_text(name) for name in changed)
    assert not all(is_of_text(name) for name in before)
    assert (run / "model/preprocessor_config.json").read_bytes() == (
        start / "preprocessor_config.json"
    ).read_bytes()
