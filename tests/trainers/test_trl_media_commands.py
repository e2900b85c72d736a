"""A model with a vision part through the commands of a run: adapters, evaluation, resume and fine-tuning."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.media_commands import ROOT, SMALL, weights
from tests.support.tiny_media import media_model
from xp.lib.models.weights import is_of_text
from xp.worker.adapters import ADAPTER


def xp(*words: str) -> str:
    """Runs a command and returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "xp", *words], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def check_model(model: Path, start: Path) -> None:
    """The text is trained, and every other weight is that of the start."""
    before = weights(start)
    after = weights(model)
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(is_of_text(name) for name in changed)
    name = "preprocessor_config.json"
    assert (model / name).read_bytes() == (start / name).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_adapters_are_trained_evaluated_and_resumed(tmp_path: Path) -> None:
    start = media_model("qwen3_vl", tmp_path / "start")
    outputs = f"outputs={tmp_path}/outputs"
    xp(*SMALL, f"model.path={start}", "model.lora=8", outputs)
    (run,) = (tmp_path / "outputs/runs").iterdir()
    check_model(run / "model", start)
    assert (run / "model" / ADAPTER).is_dir()
    assert run.name in xp("eval", f"run={run.name}", outputs)
    xp(f"resume={run.name}", "training.num_steps=3", outputs)
    assert "continuing from" in next((run / "attempt_2").glob("*train*/log.txt")).read_text()
    check_model(run / "model", start)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_fine_tuned(tmp_path: Path) -> None:
    start = media_model("gemma3", tmp_path / "start")
    data = tmp_path / "dialogues.jsonl"
    turns = [{"role": "user", "content": "2 + 3"}, {"role": "assistant", "content": "5"}]
    data.write_text((json.dumps({"messages": turns}) + "\n") * 4)
    xp("sft", *SMALL, f"model.path={start}", f"sft.data={data}", f"outputs={tmp_path}/outputs")
    (run,) = (tmp_path / "outputs/runs").iterdir()
    check_model(run / "sft", start)
