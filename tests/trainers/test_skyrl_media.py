"""SkyRL trains the text network of checkpoints with a vision part, whose weights stay byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("skyrl", reason="SkyRL is in a virtual environment of its own: make test-skyrl")

from tests.support.skyrl_media import SMALL, check_model
from tests.support.tiny_media import media_model
from xp.episode.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "qwen3_5"])
def test_a_checkpoint_with_a_vision_part_is_trained_on_text(family: str, tmp_path: Path) -> None:
    start = media_model(family, tmp_path / family)
    run = rehearse(tmp_path, f"model.path={start}")
    line = read_metrics(run / "metrics.jsonl", "train")[0]
    assert line["training/grad_norm"] > 0
    assert line["training/logprob_gap"] < 1e-5
    check_model(run / "model", start)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_is_resumed(tmp_path: Path) -> None:
    start = media_model("qwen3_vl", tmp_path / "start")
    more = ("training.checkpoint_every=1", "env.held_out=null")
    run = rehearse(tmp_path, f"model.path={start}", *more)
    rehearse(tmp_path, f"resume={run.name}", "training.num_steps=2", is_new=False)
    lines = read_metrics(run / "metrics.jsonl", "train")
    assert [(line["step"], line["attempt"]) for line in lines] == [(1, 1), (2, 2)]
    assert lines[1]["training/logprob_gap"] < 1e-5
    check_model(run / "model", start)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_is_fine_tuned(tmp_path: Path) -> None:
    start = media_model("qwen3_vl", tmp_path / "start")
    data = tmp_path / "dialogues.jsonl"
    turns = [{"role": "user", "content": "2 + 3"}, {"role": "assistant", "content": "5"}]
    data.write_text((json.dumps({"messages": turns}) + "\n") * 4)
    run = rehearse(tmp_path, "sft", f"model.path={start}", f"sft.data={data}")
    check_model(run / "sft", start)


def rehearse(directory: Path, *words: str, is_new: bool = True) -> Path:
    """Runs a command, with the words of the rehearsal if it begins a run; returns the directory of the only run."""
    command = [word for word in words if "=" not in word]
    values = [word for word in words if "=" in word]
    if is_new:
        values = [*SMALL, *values, f"backend.runtime.python={sys.executable}"]
    done = subprocess.run(
        [sys.executable, "-m", "xp", *command, *values, f"outputs={directory}/outputs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (run,) = (directory / "outputs/runs").iterdir()
    return run
