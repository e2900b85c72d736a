"""Experiments for a GPU that is at hand for minutes: their words, figures and pieces (tools.gpu)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.gpu.__main__ import command_of, planned_mib
from tools.gpu.entries import ENTRIES, LARGE, SMOLLM2, Part, merged
from tools.gpu.models import SHAPE
from xp.composition import compose
from xp.planning.plan import build_plan

SMALL = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "max_position_embeddings": 8192,
}
RUNS = [(entry, part) for entry, made in ENTRIES.items() for part in made.parts if part.is_run]


@pytest.mark.parametrize(("entry", "part"), RUNS, ids=lambda one: getattr(one, "name", one))
def test_each_run_has_a_plan_for_a_card_and_as_its_rehearsal(
    entry: str, part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tests").symlink_to(Path(__file__).parents[1])
    for place, config in ((LARGE, {"model_type": "qwen2", **SHAPE}), (SMOLLM2, SMALL)):
        Path(place).mkdir(parents=True)
        Path(place, "config.json").write_text(json.dumps(config))
    on_card = compose(merged(part.words, {"hardware": "1xH200"}))
    assert on_card.hardware.accelerator == "h200", entry
    spec = compose([word for word in command_of(part, tmp_path, is_rehearsal=True) if "=" in word])
    assert build_plan(on_card, "r", 1).stages
    assert planned_mib(on_card)
    assert build_plan(spec, "r", 1).stages
    assert spec.training.num_steps == 2
    assert spec.model.name == "tiny"
