"""TRL trains the text network of checkpoints with a vision part, whose weights stay byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.media_commands import ROOT, SMALL, weights
from tests.support.tiny_media import FAMILIES, media_model
from xp.episode.metrics_file import read_metrics
from xp.lib.models.weights import is_of_text
from xp.worker.media import auto_class, load_network, placeholder_ids, text_layers


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_is_the_whole_model_and_adapters_are_on_its_text(
    family: str, tmp_path: Path
) -> None:
    import torch

    from xp.worker.engines.transformers_engine import check_decoding

    model = load_network(media_model(family, tmp_path / family), torch.float32).eval()
    check_decoding(model)
    assert auto_class(model.config).__name__ == "AutoModelForImageTextToText"
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if not is_of_text(name)} != set()
    assert len(placeholder_ids(model.config)) >= 3
    assert all(is_of_text(name) for name in text_layers(model, ("q_proj",)) or ())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_with_a_vision_part_is_trained_on_text(family: str, tmp_path: Path) -> None:
    start = media_model(family, tmp_path / family)
    words = [*SMALL, f"model.path={start}", f"outputs={tmp_path}/outputs"]
    done = subprocess.run(
        [sys.executable, "-m", "xp", *words], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    (run,) = (tmp_path / "outputs/runs").iterdir()
    assert read_metrics(run / "metrics.jsonl", "train")[0]["training/logprob_gap"] < 1e-5
    before = weights(start)
    after = weights(run / "model")
    assert before.keys() == after.keys()
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert all(is_of_text(name) for name in changed)
    assert (run / "model/preprocessor_config.json").read_bytes() == (
        start / "preprocessor_config.json"
    ).read_bytes()
