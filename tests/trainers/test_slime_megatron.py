"""Slime's own update of Megatron's own GPT model, and its export, where there is no GPU (make rehearse-slime)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.slime_setup import needs_slime, result_of

BAR = 1e-4
pytestmark = [needs_slime, pytest.mark.slow, pytest.mark.timeout(900)]


def test_two_updates_move_the_policy_and_the_export_agrees(tmp_path: Path) -> None:
    reported = result_of("slime_megatron", str(tmp_path))
    assert [update["grad_norm"] > 0 for update in reported] == [True, True]
    before, first, second = (said(tmp_path / f"export-{number}") for number in range(3))
    assert all(
        float((old - new).abs().max()) > 1e-3 for old, new in ((before, first), (first, second))
    )
    # Beside an engine with FP8 weights, the export is what it is without.
    plain, beside_twin = (weights(tmp_path / name) for name in ("export-0", "exports/0"))
    assert plain.keys() == beside_twin.keys()
    assert all(plain[name].equal(beside_twin[name]) for name in plain)
    assert "quantization_config" not in json.loads((tmp_path / "exports/0/config.json").read_text())


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "minimax_m2"])
def test_a_random_model_of_a_family_is_loaded_updated_and_exported(
    family: str, tmp_path: Path
) -> None:
    assert result_of("slime_family", family, str(tmp_path)) > 0
    # The first export is the model that transformers made.
    before, after = (said(tmp_path / f"export-{number}") for number in range(2))
    assert float((before - after).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", ["glm4v_moe", "qwen3_vl"])
def test_a_checkpoint_with_media_is_trained_on_text(kind: str, tmp_path: Path) -> None:
    """Slime's own update of the text network; log-probabilities are those of the whole model of transformers."""
    result_of("slime_family", kind, str(tmp_path))
    before, after = (said(tmp_path / f"export-{number}", 1e-5) for number in range(2))
    assert float((before - after).abs().max()) > 1e-3
    start = weights(tmp_path / "models" / kind)
    first, second = (weights(tmp_path / f"export-{number}") for number in range(2))
    assert start.keys() == first.keys() == second.keys()
    assert all(first[name].equal(start[name]) for name in start)
    frozen = {name for name in start if second[name].equal(start[name])}
    assert {name for name in start if "visual" in name} <= frozen
    assert len(frozen) < len(start)


def weights(directory: Path) -> dict[str, Any]:
    """All tensors of a model's files."""
    from safetensors.torch import load_file

    return {
        name: one
        for file in directory.glob("*.safetensors")
        for name, one in load_file(file).items()
    }


def said(directory: Path, bar: float = BAR) -> Any:
    """Log-probabilities of Megatron's model, after they were held against the exported one's."""
    import torch
    from transformers import AutoConfig

    from tests.trainers.slime_megatron import SAID
    from xp.worker.media import auto_class

    kind = auto_class(AutoConfig.from_pretrained(directory))
    exported = kind.from_pretrained(directory, dtype=torch.float32).eval()
    kept = torch.load(directory / SAID)
    for tokens, own in zip(kept["tokens"], kept["log_probs"], strict=True):
        with torch.inference_mode():
            logits = exported(tokens[None]).logits[0, :-1]
        theirs = logits.log_softmax(-1).gather(1, tokens[1:, None])[-len(own) :, 0]
        assert float((theirs - own).abs().max()) < bar
    return torch.cat(kept["log_probs"])
